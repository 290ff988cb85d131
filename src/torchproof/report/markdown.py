"""Runs and comparisons as Markdown: tables for a report, a pull request, a document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torchproof.measure import Comparison, Metric
from torchproof.records import Measurement, Run
from torchproof.report import (
    bench_sections,
    markup,
    measurement_tables,
    numbers,
    optimisation,
    search_trials,
)
from torchproof.report import comparison_text as compared
from torchproof.report import tune as searched
from torchproof.report.heading import heading
from torchproof.report.search_trials import Search, Trial

table = markup.table
baseline = measurement_tables.baseline


def render(run: Run) -> str:
    known = {"bench": _bench, "tune": _tune}
    blocks = known.get(run.verb, optimisation.render)(run)
    return "\n\n".join(filter(None, blocks)) + "\n"


def _bench(run: Run) -> Iterator[str]:
    yield from heading(run, "torch.compile bench")
    rows = bench_sections.ranked(run)
    if rows:
        yield measurement_tables.baseline(rows)
    yield from _details((row.strategy, row) for row in rows)
    yield from map(measurement_tables.of_section, bench_sections.variants(run))
    missing = bench_sections.not_ranked(run)
    if missing:
        yield f"### Not ranked\n\n{_list(missing)}"
    found, chosen = bench_sections.chosen(run)
    yield f"**Decision: {found.word}**: {markup.inline(found.text)}."
    if chosen and chosen.source:
        yield markup.fence(chosen.source, "python")


def _details(rows: Iterable[tuple[str, Measurement]]) -> Iterator[str]:
    for name, row in rows:
        lines = list(bench_sections.details(row))
        if lines:
            yield f"**{markup.inline(name)}**\n\n{_list(lines)}"


# -- tune ------------------------------------------------------------------------------


def _tune(run: Run) -> Iterator[str]:
    """The answer, then what it rests on."""
    search = Search.of(run)
    yield from heading(run, "torch.compile tune")
    yield f"**Decision:** {markup.inline(search_trials.decision(search))}"
    if search.lines.strip():
        yield markup.fence(search.lines, "python")
    if search.recipe_file:
        yield f"The recipe is in {markup.code(search.recipe_file)}. To put it in force:"
        yield markup.fence(search_trials.applied(search), "python")
    if again := search_trials.to_go_on(run, search):
        yield f"To go on with it: {markup.code(again)}"
    yield f"## The search\n\n{_list(search_trials.about(search))}"
    for title, told in (("Finalists, timed in turns", True), ("Other trials", False)):
        rows = [trial for trial in search.ranked if trial.final is told]
        if rows:
            yield f"## {title}\n\n{_leaderboard(rows, search)}"
        if any(map(search_trials.is_warm, rows)):
            yield markup.prose(search_trials.WARM)
    if search.failed:
        ends = [f"{trial.name} {trial.end}" for trial in search.failed]
        yield f"## Not ranked\n\n{_list(ends)}"
    left_out = [f"{', '.join(n)}: {why}" for why, n in search.left_out().items()]
    if left_out:
        yield f"## Not tried\n\n{_list(left_out)}"
    details = list(_details(search_trials.finals(run).items()))
    if details:
        yield "\n\n".join(["## What else was measured of the finalists", *details])


def _leaderboard(rows: Sequence[Trial], search: Search) -> str:
    placed = any(trial.where for trial in rows)
    header = (*searched.columns(search), "stage", "trial took", *["where"][:placed])
    told = []
    for trial in rows:
        cost = numbers.seconds(trial.seconds)
        more = (trial.stage or "-", cost, *[trial.where or "-"][:placed])
        told.append((*searched.cells(trial, search), *more))
    head = tuple(f"{name[:1].upper()}{name[1:]}" for name in header)
    return table(head, [tuple(map(markup.inline, cells)) for cells in told])


# -- compare ---------------------------------------------------------------------------


def of_comparison(found: Comparison) -> str:
    """What `torchproof compare --format md` prints."""
    runs = [
        (name, markup.code(run["id"]), markup.code(run["target"]))
        for name, run in (("A", found.a), ("B", found.b))
    ]
    blocks = ["## Comparison", table(("", "Run", "Target"), runs)]
    blocks.append(_list(compared.warnings(found)))
    for row in found.rows:
        blocks.append(f"### {markup.inline(row.name)}")
        blocks.append(markup.prose(row.broken or row.note))
        blocks.append(_metrics(row.metrics))
    blocks.append(_metrics(found.counts))
    blocks.append(_list(compared.findings(found)))
    blocks += map(markup.prose, compared.summary(found))
    return "\n\n".join(filter(None, blocks)) + "\n"


def _metrics(metrics: Sequence[Metric]) -> str:
    known = [m for m in metrics if m.a is not None or m.b is not None]
    if not known:
        return ""
    told = [
        (*compared.cells(metric), "regression" if metric.regression else metric.why)
        for metric in known
    ]
    rows = [tuple(map(markup.inline, cells)) for cells in told]
    return table(("Metric", "A", "B", "Verdict", ""), rows)


def _list(lines: Iterable[str]) -> str:
    return markup.bullets(map(markup.inline, lines))
