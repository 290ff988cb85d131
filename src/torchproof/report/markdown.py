"""Renders runs and comparisons as Markdown."""

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
    renderers = {"bench": _bench, "tune": _tune}
    blocks = renderers.get(run.verb, optimisation.render)(run)
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
    decision, chosen = bench_sections.chosen(run)
    yield f"**Decision: {decision.word}**: {markup.inline(decision.text)}."
    if chosen and chosen.source:
        yield markup.fence(chosen.source, "python")


def _details(rows: Iterable[tuple[str, Measurement]]) -> Iterator[str]:
    for name, row in rows:
        lines = list(bench_sections.details(row))
        if lines:
            yield f"**{markup.inline(name)}**\n\n{_list(lines)}"


# -- tune ------------------------------------------------------------------------------


def _tune(run: Run) -> Iterator[str]:
    """The decision, then the trials behind it."""
    search = Search.of(run)
    yield from heading(run, "torch.compile tune")
    yield f"**Decision:** {markup.inline(search_trials.decision(search))}"
    if search.lines.strip():
        yield markup.fence(search.lines, "python")
    if search.recipe_file:
        yield f"The recipe is in {markup.code(search.recipe_file)}. To use it:"
        yield markup.fence(search_trials.applied(search), "python")
    if again := search_trials.to_go_on(run, search):
        yield f"To resume the search: {markup.code(again)}"
    yield f"## The search\n\n{_list(search_trials.about(search))}"
    finalists = "Finalists, timed in interleaved rounds"
    for title, final in ((finalists, True), ("Other trials", False)):
        rows = [trial for trial in search.ranked if trial.final is final]
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
        yield "\n\n".join(["## Other measurements of the finalists", *details])


def _leaderboard(rows: Sequence[Trial], search: Search) -> str:
    placed = any(trial.where for trial in rows)
    header = (*searched.columns(search), "stage", "trial took", *["where"][:placed])
    cells_by_row = []
    for trial in rows:
        cost = numbers.seconds(trial.seconds)
        more = (trial.stage or "-", cost, *[trial.where or "-"][:placed])
        cells_by_row.append((*searched.cells(trial, search), *more))
    head = tuple(f"{name[:1].upper()}{name[1:]}" for name in header)
    return table(head, [tuple(map(markup.inline, cells)) for cells in cells_by_row])


# -- compare ---------------------------------------------------------------------------


def of_comparison(comparison: Comparison) -> str:
    """The output of `torchproof compare --format md`."""
    runs = [
        (name, markup.code(run["id"]), markup.code(run["target"]))
        for name, run in (("A", comparison.a), ("B", comparison.b))
    ]
    blocks = ["## Comparison", table(("", "Run", "Target"), runs)]
    blocks.append(_list(compared.warnings(comparison)))
    for row in comparison.rows:
        blocks.append(f"### {markup.inline(row.name)}")
        blocks.append(markup.prose(row.broken or row.note))
        blocks.append(_metrics(row.metrics))
    blocks.append(_metrics(comparison.counts))
    blocks.append(_list(compared.findings(comparison)))
    blocks += map(markup.prose, compared.summary(comparison))
    return "\n\n".join(filter(None, blocks)) + "\n"


def _metrics(metrics: Sequence[Metric]) -> str:
    measured = [m for m in metrics if m.a is not None or m.b is not None]
    if not measured:
        return ""
    cells_by_row = [
        (*compared.cells(metric), "regression" if metric.regression else metric.why)
        for metric in measured
    ]
    rows = [tuple(map(markup.inline, cells)) for cells in cells_by_row]
    return table(("Metric", "A", "B", "Verdict", ""), rows)


def _list(lines: Iterable[str]) -> str:
    return markup.bullets(map(markup.inline, lines))
