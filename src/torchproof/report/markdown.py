"""Runs and comparisons as Markdown: tables for a report, a pull request, a document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torchproof.records import Run
from torchproof.report import comparison as compared
from torchproof.report import marks, optimisation, sections, tables
from torchproof.report.heading import heading
from torchproof.verdict import Comparison, Metric

table = marks.table
baseline = tables.baseline


def render(run: Run) -> str:
    blocks = _bench(run) if run.verb == "bench" else optimisation.render(run)
    return "\n\n".join(filter(None, blocks)) + "\n"


def _bench(run: Run) -> Iterator[str]:
    yield from heading(run, "torch.compile bench")
    rows = sections.ranked(run)
    if rows:
        yield tables.baseline(rows)
    for row in rows:
        lines = list(sections.details(row))
        if lines:
            yield f"**{marks.inline(row.strategy)}**\n\n{_list(lines)}"
    yield from map(tables.of_section, sections.variants(run))
    missing = sections.not_ranked(run)
    if missing:
        yield f"### Not ranked\n\n{_list(missing)}"
    found, chosen = sections.chosen(run)
    yield f"**Decision: {found.word}**: {marks.inline(found.text)}."
    if chosen and chosen.source:
        yield marks.fence(chosen.source, "python")


# -- compare ---------------------------------------------------------------------------


def of_comparison(found: Comparison) -> str:
    """What `torchproof compare --format md` prints."""
    runs = [
        (name, marks.code(run["id"]), marks.code(run["target"]))
        for name, run in (("A", found.a), ("B", found.b))
    ]
    blocks = ["## Comparison", table(("", "Run", "Target"), runs)]
    blocks.append(_list(compared.warnings(found)))
    for row in found.rows:
        blocks.append(f"### {marks.inline(row.name)}")
        blocks.append(marks.prose(row.broken or row.note))
        blocks.append(_metrics(row.metrics))
    blocks.append(_metrics(found.counts))
    blocks.append(_list(compared.findings(found)))
    blocks += map(marks.prose, compared.summary(found))
    return "\n\n".join(filter(None, blocks)) + "\n"


def _metrics(metrics: Sequence[Metric]) -> str:
    known = [m for m in metrics if m.a is not None or m.b is not None]
    if not known:
        return ""
    told = [
        (*compared.cells(metric), "regression" if metric.regression else metric.why)
        for metric in known
    ]
    rows = [tuple(map(marks.inline, cells)) for cells in told]
    return table(("Metric", "A", "B", "Verdict", ""), rows)


def _list(lines: Iterable[str]) -> str:
    return marks.bullets(map(marks.inline, lines))
