"""The tune section of the page: recipe, scatter plot, legend and table of trials."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from torchproof.records import Measurement, Run
from torchproof.report import numbers, search_trials, tune
from torchproof.report.html import scatter
from torchproof.report.search_trials import Search, Trial

_SHAPES = {
    "eager": Markup('<rect x="-6" y="-6" width="12" height="12" rx="1"/>'),
    "chosen": Markup('<path d="M0 -9L9 0L0 9L-9 0Z"/>'),
    "other": Markup('<circle r="5"/>'),
}
_RIGHT = ("step", "first call", "memory", "trial took")


def content(run: Run) -> dict[str, Any]:
    """The variables of tune.html."""
    search = Search.of(run)
    drawn = scatter.plot(search)
    placed = any(trial.where for trial in search.ranked)
    more = ("stage", "trial took", *["where"][:placed])
    header = (*tune.columns(search), *more)
    rows = [(trial, _cells(trial, search, placed=placed)) for trial in search.ranked]
    return {
        "search": search,
        "lines": search.lines.strip("\n"),
        "applied": search_trials.applied(search),
        "again": search_trials.to_go_on(run, search),
        "plot": drawn,
        "keys": list(_keys(drawn)) if drawn else [],
        "shape": _SHAPES.__getitem__,
        "header": header,
        "kind": _kind,
        "leaderboard": rows,
        "warm": search_trials.WARM
        if any(map(search_trials.is_warm, search.ranked))
        else "",
        "failed": [(t.name, t.outcome, t.why or "-") for t in search.failed],
        "left_out": [(w, ", ".join(names)) for w, names in search.left_out().items()],
        "about_search": list(search_trials.about(search)),
    }


def _cells(trial: Trial, search: Search, *, placed: bool) -> tuple[str, ...]:
    cost = numbers.seconds(trial.seconds)
    more = (trial.stage or numbers.UNKNOWN, cost, *[trial.where or "-"][:placed])
    return (*tune.cells(trial, search), *more)


def _kind(column: str) -> str:
    """The CSS class of the column's cells."""
    if column in _RIGHT or column.endswith(" steps"):
        return "n"
    return "gain" if column == "vs eager" else "said"


def _keys(drawn: scatter.Plot) -> Iterator[tuple[str, str, str]]:
    """The legend: shape, tone and meaning of each kind of mark in the plot."""
    kinds = {mark.kind for mark in drawn.marks}
    others = [mark for mark in drawn.marks if mark.kind == "other"]
    if "chosen" in kinds:
        tone = next(mark.tone for mark in drawn.marks if mark.kind == "chosen")
        yield "chosen", tone, "chosen"
    if "eager" in kinds:
        yield "eager", "eager", "eager"
    meanings = {
        "faster": "faster than eager",
        "slower": "slower than eager",
        "level": "difference not significant",
    }
    for tone, meaning in meanings.items():
        if any(mark.tone == tone for mark in others):
            yield "other", tone, meaning
    if any(mark.warm for mark in drawn.marks):
        yield "other", "level is-warm", "hollow: not a cold first call, see below"


def winner(run: Run) -> tuple[Measurement | None, Measurement | None]:
    """The rows of the chosen strategy and of eager."""
    search, timed = Search.of(run), search_trials.finals(run)

    def row(trial: Trial | None) -> Measurement | None:
        return timed.get(trial.name, _row(trial)) if trial and trial.ranked else None

    eager = next((trial for trial in search.trials if trial.is_eager), None)
    return row(search.winner), row(eager)


def _row(trial: Trial) -> Measurement:
    return Measurement(
        trial.name,
        median_ms=trial.step_ms,
        first_call_s=trial.first_call_s if trial.cold else None,
        peak_bytes=None if trial.peak_bytes is None else int(trial.peak_bytes),
        numerics=trial.numerics,
        vs_eager=trial.vs_eager,
        vs_eager_low=trial.vs_eager_low,
        vs_eager_high=trial.vs_eager_high,
    )
