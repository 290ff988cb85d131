"""Renders a tune run as terminal text: the trials, the decision, how to use it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from torchproof.records import Run
from torchproof.report import bench, numbers, search_trials
from torchproof.report.bench import wrap
from torchproof.report.search_trials import Search, Trial

_INDENT = "   "
_CODE = "    "
_CHOSEN = "> "
_LEAST_NAME = len("strategy")  # with less room for names, each trial is a sentence
_SHORT = {"first call": "1st call"}  # keeps the column as narrow as its cells
_RIGHT = {"step", "first call", "memory"}


def render(run: Run, *, width: int = 80) -> str:
    """The probe, the trials in order, the decision and the recipe."""
    width = max(width, 40)
    search = Search.of(run)
    finalists = [trial for trial in search.ranked if trial.final]
    others = [trial for trial in search.ranked if not trial.final]
    finals = "Finalists, timed in interleaved rounds"
    rest = "Other trials, timed briefly" if finalists else "Trials, timed briefly"
    blocks = [
        [*_opening(run, search, width)],
        [*_board(finals, finalists, search, width)],
        [*_board(rest, others, search, width)],
        [*_failed(search, width)],
        [*_left_out(search, width)],
        [*_ending(run, search, width)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _opening(run: Run, search: Search, width: int) -> Iterator[str]:
    yield from bench.opening(run, width)
    text = f"objective: {search_trials.objective(search.objective)}"
    text += f"; effort {search.effort}" if search.effort else ""
    text += f"; {search_trials.spent(search)}" if search.spent_s is not None else ""
    yield from wrap(text, width)
    text = search_trials.counted(search)
    if search.stopped:
        text += f"; stopped because {search_trials.stopped(search)}"
    yield from wrap(text, width)
    yield from wrap(" ".join(search_trials.probed(search.probe)), width)
    yield from bench.incomplete(run, width)


# -- the leaderboard -------------------------------------------------------------------


def columns(search: Search) -> tuple[str, ...]:
    """The header of a leaderboard; the objective `steps:N` adds a column."""
    steps = search.objective.partition(":")
    total = (f"{steps[2]} steps",) if steps[0] == "steps" else ()
    return ("strategy", "step", *total, "vs eager", "first call", "memory", "numerics")


def cells(trial: Trial, search: Search) -> tuple[str, ...]:
    steps = search.objective.startswith("steps:")
    return (
        trial.name,
        numbers.milliseconds(trial.step_ms),
        *([numbers.seconds(trial.value)] if steps else ()),
        trial.gain,
        search_trials.first_call(trial),
        numbers.size(trial.peak_bytes),
        trial.verdict,
    )


def _board(
    title: str, rows: Sequence[Trial], search: Search, width: int
) -> Iterator[str]:
    if not rows:
        return
    yield f"{title}:"
    header = columns(search)
    short = tuple(_SHORT.get(name, name) for name in header)
    table = [short, *(cells(trial, search) for trial in rows)]
    sizes = [max(map(len, column)) for column in zip(*table, strict=True)]
    room = width - sum(sizes[1:]) - 2 * (len(sizes) - 1) - len(_CHOSEN)
    if room < _LEAST_NAME:
        for trial in rows:
            yield from _in_words(trial, search, width)
    else:
        sizes[0] = min(sizes[0], room)
        for each in table:
            yield from _lines(each, sizes, header, chosen=each[0] == search.chosen)
    if any(map(search_trials.is_warm, rows)):
        yield from wrap(search_trials.WARM, width, _INDENT, _INDENT * 2)
    if any(trial.name == search.chosen for trial in rows):
        yield f"{_INDENT}{_CHOSEN}marks the chosen strategy"


def _lines(
    each: Sequence[str], sizes: Sequence[int], header: Sequence[str], *, chosen: bool
) -> Iterator[str]:
    """A name too long for its column gets a line of its own."""
    mark = _CHOSEN if chosen else " " * len(_CHOSEN)
    name = each[0]
    if len(name) > sizes[0]:
        yield f"{mark}{name}"
        mark, name = " " * len(_CHOSEN), ""
    padded = [f"{name:<{sizes[0]}}"]
    for cell, size, column in zip(each[1:], sizes[1:], header[1:], strict=True):
        right = column in _RIGHT or column.endswith(" steps")
        padded.append(f"{cell:>{size}}" if right else f"{cell:<{size}}")
    yield (mark + "  ".join(padded)).rstrip()


def _in_words(trial: Trial, search: Search, width: int) -> Iterator[str]:
    mark = _CHOSEN if trial.name == search.chosen else ""
    yield f"{mark}{trial.name}"
    values = dict(zip(columns(search), cells(trial, search), strict=True))
    values.pop("strategy")
    phrases = [
        value if name in ("step", "vs eager") else f"{name} {value}"
        for name, value in values.items()
        if value != numbers.UNKNOWN
    ]
    yield from wrap(", ".join(phrases), width, _INDENT)


# -- outside the tables ---------------------------------------------------------------


def _failed(search: Search, width: int) -> Iterator[str]:
    if search.failed:
        yield "Not ranked:"
    for trial in search.failed:
        yield from wrap(f"{trial.name} {trial.end}", width, _INDENT, _INDENT * 2)


def _left_out(search: Search, width: int) -> Iterator[str]:
    reasons = search.left_out()
    if reasons:
        yield "Not tried:"
    for why, names in reasons.items():
        yield from wrap(f"{', '.join(names)}: {why}", width, _INDENT, _INDENT * 2)


def _ending(run: Run, search: Search, width: int) -> Iterator[str]:
    yield from wrap(f"Decision: {search_trials.decision(search)}", width)
    if search.lines.strip():
        yield from ("", *_code(search.lines), "")
    if search.recipe_file:
        written = f"The recipe is in {search.recipe_file}. To use it:"
        yield from wrap(written, width)
        yield from ("", *_code(search_trials.applied(search)), "")
    if again := search_trials.to_go_on(run, search):
        yield from ("To resume the search:", "", *_code(again), "")
    yield f"Saved as run {run.id}."


def _code(text: str) -> list[str]:
    return textwrap.indent(text.rstrip(), _CODE).splitlines()
