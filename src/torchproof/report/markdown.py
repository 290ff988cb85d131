"""Renders runs and comparisons as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torchproof.measure import Comparison, Metric
from torchproof.records import Measurement, Run
from torchproof.report import (
    bench_sections,
    fixes,
    load_test,
    markup,
    optimisation,
    search_words,
)
from torchproof.report import comparison_text as compared
from torchproof.report.heading import heading
from torchproof.report.text_layout import Table

table = markup.table


def render(run: Run) -> str:
    renderers = {
        "bench": _bench,
        "tune": _tune,
        "fix": fixes.markdown,
        "loadtest": load_test.markdown,
    }
    blocks = renderers.get(run.verb, optimisation.render)(run)
    return "\n\n".join(filter(None, blocks)) + "\n"


def _bench(run: Run) -> Iterator[str]:
    yield from heading(run, "torch.compile bench")
    rows = bench_sections.timed(run)
    if rows:
        yield bench_sections.measured(rows).markdown()
    yield from _details((row.strategy, row) for row in rows)
    yield from (section.markdown() for section in bench_sections.variants(run))
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
    search = search_words.search_of(run)
    yield from heading(run, "torch.compile tune")
    yield f"**Decision:** {markup.inline(search_words.decision(search))}"
    lines = search_words.code_lines(search)
    if lines.strip():
        yield markup.fence(lines, "python")
    if search.recipe_file:
        yield f"The recipe is in {markup.code(search.recipe_file)}. To use it:"
        yield markup.fence(search_words.applied(search), "python")
    if again := search_words.to_go_on(run):
        yield f"To resume the search: {markup.code(again)}"
    yield f"## The search\n\n{_list(search_words.about(search))}"
    finalists = "Finalists, timed in interleaved rounds"
    for title, final in ((finalists, True), ("Other trials", False)):
        ranked = search_words.ranked(search)
        rows = [trial for trial in ranked if trial.final is final]
        if rows:
            table_of = Table("", *search_words.full_table(rows, search))
            yield f"## {title}\n\n{table_of.markdown()}"
        if any(trial.is_warm for trial in rows):
            yield markup.prose(search_words.WARM)
    if failed := search_words.failed(search):
        ends = [f"{t.name} {search_words.why_not_ranked(t)}" for t in failed]
        yield f"## Not ranked\n\n{_list(ends)}"
    if reasons := search_words.left_out(search):
        left_out = [f"{', '.join(names)}: {why}" for why, names in reasons.items()]
        yield f"## Not tried\n\n{_list(left_out)}"
    details = list(_details(search_words.finals(run).items()))
    if details:
        yield "\n\n".join(["## Other measurements of the finalists", *details])


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
