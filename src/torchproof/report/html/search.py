"""The tune section of the page: recipe, scatter plot, legend and table of trials."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from torchproof.records import Measurement, Run, Trial
from torchproof.report import search_words, text_layout
from torchproof.report.html import scatter

_SHAPES = {
    "eager": Markup('<rect x="-6" y="-6" width="12" height="12" rx="1"/>'),
    "chosen": Markup('<path d="M0 -9L9 0L0 9L-9 0Z"/>'),
    "other": Markup('<circle r="5"/>'),
}


def content(run: Run) -> dict[str, Any]:
    """The variables of tune.html."""
    search = search_words.search_of(run)
    ranked, failed = search_words.ranked(search), search_words.failed(search)
    drawn = scatter.plot(search)
    header, rows = search_words.full_table(ranked, search)
    left_out = search_words.left_out(search)
    return {
        "search": search,
        "lines": search_words.code_lines(search).strip("\n"),
        "applied": search_words.applied(search),
        "again": search_words.to_go_on(run),
        "plot": drawn,
        "keys": list(_keys(drawn)) if drawn else [],
        "shape": _SHAPES.__getitem__,
        "header": header,
        "kind": _kind,
        "leaderboard": list(zip(ranked, rows, strict=True)),
        "warm": search_words.WARM if any(t.is_warm for t in ranked) else "",
        "failed": [(t.name, t.outcome, t.why or "-") for t in failed],
        "left_out": [(why, ", ".join(names)) for why, names in left_out.items()],
        "about_search": list(search_words.about(search)),
    }


def _kind(column: str) -> str:
    """The CSS class of the column's cells."""
    if text_layout.is_number(column) or column == "trial took":
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
    search, timed = search_words.search_of(run), search_words.finals(run)

    def row(trial: Trial | None) -> Measurement | None:
        return timed.get(trial.name, _row(trial)) if trial and trial.is_ranked else None

    eager = next((trial for trial in search.trials if trial.is_eager), None)
    return row(search_words.winner(search)), row(eager)


def _row(trial: Trial) -> Measurement:
    return Measurement(
        trial.name,
        median_ms=trial.step_ms,
        first_call_s=None if trial.is_warm else trial.first_call_s,
        peak_bytes=None if trial.peak_bytes is None else int(trial.peak_bytes),
        numerics=trial.numerics,
        vs_eager=trial.vs_eager,
        vs_eager_low=trial.vs_eager_low,
        vs_eager_high=trial.vs_eager_high,
    )
