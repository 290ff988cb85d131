"""Renders a tune run as terminal text: the trials, the decision, how to use it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from torchproof.records import Run, Trial, Tuning
from torchproof.report import bench, numbers, search_words
from torchproof.report.bench import wrap
from torchproof.report.search_words import cells, columns

_INDENT = "   "
_CODE = "    "
_CHOSEN = "> "
_LEAST_NAME = len("strategy")  # with less room for names, each trial is a sentence
_SHORT = {"first call": "1st call"}  # keeps the column as narrow as its cells
_RIGHT = {"step", "first call", "memory"}


def render(run: Run, *, width: int = 80) -> str:
    """The probe, the trials in order, the decision and the recipe."""
    width = max(width, 40)
    search = search_words.search_of(run)
    ranked = search_words.ranked(search)
    finalists = [trial for trial in ranked if trial.final]
    others = [trial for trial in ranked if not trial.final]
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


def _opening(run: Run, search: Tuning, width: int) -> Iterator[str]:
    yield from bench.opening(run, width)
    text = f"objective: {search_words.objective(search.objective)}"
    text += f"; effort {search.effort}" if search.effort else ""
    text += f"; {search_words.spent(search)}" if search.spent_s is not None else ""
    yield from wrap(text, width)
    text = search_words.counted(search)
    if search.stopped:
        text += f"; stopped because {search_words.stopped(search)}"
    yield from wrap(text, width)
    yield from wrap(" ".join(search_words.probed(search.probe)), width)
    yield from bench.incomplete(run, width)


# -- the leaderboard -------------------------------------------------------------------


def _board(
    title: str, rows: Sequence[Trial], search: Tuning, width: int
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
    if any(trial.is_warm for trial in rows):
        yield from wrap(search_words.WARM, width, _INDENT, _INDENT * 2)
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


def _in_words(trial: Trial, search: Tuning, width: int) -> Iterator[str]:
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


def _failed(search: Tuning, width: int) -> Iterator[str]:
    failed = search_words.failed(search)
    if failed:
        yield "Not ranked:"
    for trial in failed:
        text = f"{trial.name} {search_words.why_not_ranked(trial)}"
        yield from wrap(text, width, _INDENT, _INDENT * 2)


def _left_out(search: Tuning, width: int) -> Iterator[str]:
    reasons = search_words.left_out(search)
    if reasons:
        yield "Not tried:"
    for why, names in reasons.items():
        yield from wrap(f"{', '.join(names)}: {why}", width, _INDENT, _INDENT * 2)


def _ending(run: Run, search: Tuning, width: int) -> Iterator[str]:
    yield from wrap(f"Decision: {search_words.decision(search)}", width)
    lines = search_words.code_lines(search)
    if lines.strip():
        yield from ("", *_code(lines), "")
    if search.recipe_file:
        written = f"The recipe is in {search.recipe_file}. To use it:"
        yield from wrap(written, width)
        yield from ("", *_code(search_words.applied(search)), "")
    if again := search_words.to_go_on(run):
        yield from ("To resume the search:", "", *_code(again), "")
    yield f"Saved as run {run.id}."


def _code(text: str) -> list[str]:
    return textwrap.indent(text.rstrip(), _CODE).splitlines()
