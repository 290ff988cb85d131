"""Renders a tune run as terminal text: the trials, the decision, how to use it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchproof.records import Run, Trial, Tuning
from torchproof.report import bench, search_words, text_layout
from torchproof.report.text_layout import Table, wrap


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
        [*_trials(finals, finalists, search, width)],
        [*_trials(rest, others, search, width)],
        [*_failed(search, width)],
        [*_left_out(search, width)],
        [*_ending(run, search, width)],
    ]
    return text_layout.joined(blocks)


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


def _trials(
    title: str, rows: Sequence[Trial], search: Tuning, width: int
) -> Iterator[str]:
    if not rows:
        return
    cells = tuple(search_words.cells(trial, search) for trial in rows)
    lines = [search_words.WARM] if any(trial.is_warm for trial in rows) else []
    if any(trial.name == search.chosen for trial in rows):
        lines.append("> marks the chosen strategy")
    header, chosen = search_words.columns(search), search.chosen or ""
    yield from Table(title, header, cells, tuple(lines), marked=chosen).text(width)


# -- outside the tables ---------------------------------------------------------------


def _failed(search: Tuning, width: int) -> Iterator[str]:
    failed = search_words.failed(search)
    if failed:
        yield "Not ranked:"
    ends = [f"{t.name} {search_words.why_not_ranked(t)}" for t in failed]
    yield from text_layout.items(ends, width)


def _left_out(search: Tuning, width: int) -> Iterator[str]:
    reasons = search_words.left_out(search)
    if reasons:
        yield "Not tried:"
    texts = [f"{', '.join(names)}: {why}" for why, names in reasons.items()]
    yield from text_layout.items(texts, width)


def _ending(run: Run, search: Tuning, width: int) -> Iterator[str]:
    yield from wrap(f"Decision: {search_words.decision(search)}", width)
    lines = search_words.code_lines(search)
    if lines.strip():
        yield from text_layout.code(lines)
    if search.recipe_file:
        written = f"The recipe is in {search.recipe_file}. To use it:"
        yield from wrap(written, width)
        yield from text_layout.code(search_words.applied(search))
    if again := search_words.to_go_on(run):
        yield from ("To resume the search:", *text_layout.code(again))
    yield f"Saved as run {run.id}."
