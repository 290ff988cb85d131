"""A tune run as text for people: what was tried, what won, how to put it in force."""

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
_LEAST_NAME = len("strategy")  # with less room for names a trial is told in words
_SHORT = {"first call": "1st call"}  # a column as narrow as what stands in it
_RIGHT = {"step", "first call", "memory"}


def render(run: Run, *, width: int = 80) -> str:
    """What is known of the target, the trials in order, the decision, the recipe."""
    width = max(width, 40)
    search = Search.of(run)
    finalists = [trial for trial in search.ranked if trial.final]
    others = [trial for trial in search.ranked if not trial.final]
    finals = "Finalists, timed in turns"
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
    told = f"objective: {search_trials.objective(search.objective)}"
    told += f"; effort {search.effort}" if search.effort else ""
    told += f"; {search_trials.spent(search)}" if search.spent_s is not None else ""
    yield from wrap(told, width)
    told = search_trials.counted(search)
    told += (
        f"; stopped because {search_trials.stopped(search)}" if search.stopped else ""
    )
    yield from wrap(told, width)
    yield from wrap(" ".join(search_trials.probed(search.probe)), width)
    yield from bench.incomplete(run, width)


# -- the leaderboard -------------------------------------------------------------------


def columns(search: Search) -> tuple[str, ...]:
    """The header of a leaderboard; a column for an objective that none shows."""
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
        yield f"{_INDENT}{_CHOSEN}is the chosen one"


def _lines(
    each: Sequence[str], sizes: Sequence[int], header: Sequence[str], *, chosen: bool
) -> Iterator[str]:
    """A name too long for its column stands on a line of its own."""
    mark = _CHOSEN if chosen else " " * len(_CHOSEN)
    name = each[0]
    if len(name) > sizes[0]:
        yield f"{mark}{name}"
        mark, name = " " * len(_CHOSEN), ""
    told = [f"{name:<{sizes[0]}}"]
    for cell, size, column in zip(each[1:], sizes[1:], header[1:], strict=True):
        right = column in _RIGHT or column.endswith(" steps")
        told.append(f"{cell:>{size}}" if right else f"{cell:<{size}}")
    yield (mark + "  ".join(told)).rstrip()


def _in_words(trial: Trial, search: Search, width: int) -> Iterator[str]:
    mark = _CHOSEN if trial.name == search.chosen else ""
    yield f"{mark}{trial.name}"
    told = dict(zip(columns(search), cells(trial, search), strict=True))
    told.pop("strategy")
    known = [
        value if name in ("step", "vs eager") else f"{name} {value}"
        for name, value in told.items()
        if value != numbers.UNKNOWN
    ]
    yield from wrap(", ".join(known), width, _INDENT)


# -- what is in no table ---------------------------------------------------------------


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
        written = f"The recipe is in {search.recipe_file}. To put it in force:"
        yield from wrap(written, width)
        yield from ("", *_code(search_trials.applied(search)), "")
    if again := search_trials.to_go_on(run, search):
        yield from ("To go on with it:", "", *_code(again), "")
    yield f"Saved as run {run.id}."


def _code(text: str) -> list[str]:
    return textwrap.indent(text.rstrip(), _CODE).splitlines()
