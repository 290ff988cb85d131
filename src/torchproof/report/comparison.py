"""The document of a comparison: metrics with verdicts, findings, the decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torchproof.measure import Comparison, Metric, Row
from torchproof.records import cells as cell_sources
from torchproof.report import numbers
from torchproof.report.document import (
    Block,
    Cell,
    Code,
    Group,
    Items,
    Paragraph,
    Section,
    Table,
    Title,
    View,
)

_HEADER = ("metric", "A", "B", "verdict")
_UNITS: dict[str, Callable[[float | None], str]] = {
    "ms": numbers.milliseconds,
    "s": numbers.seconds,
    "bytes": numbers.size,
    "count": numbers.count,
    "per_s": numbers.per_second,
    "x": lambda value: numbers.times(value, None, None),
}
_PAIRS = (
    "The runs were measured at different times: each interval comes from one run, and"
    " the runs are not paired."
)
_DO_NOT = "call B faster where the verdict is `not significant`"


def document(comparison: Comparison) -> Iterator[Block]:
    runs = {"A": comparison.a, "B": comparison.b}
    targets = dict.fromkeys(run["target"] for run in runs.values())
    agent, terminal = View.AGENT, View.TERMINAL
    named = ", ".join(f"{name} {run['id']}" for name, run in runs.items())
    yield Title("Comparison", named, "compare", views=agent)
    yield Paragraph(" against ".join(targets), "Target", views=agent)
    rows = [(name, Code(r["id"]), Code(r["target"])) for name, r in runs.items()]
    yield Section(
        "Comparison", (Table("", ("", "run", "target"), tuple(rows)),), views=View.PAPER
    )
    lines = tuple(f"{name}  {run['id']}  {run['target']}" for name, run in runs.items())
    yield Items(lines, style="sentences", views=terminal)
    verdict = tuple(summary(comparison))
    yield Paragraph(" ".join(verdict), "Verdict", views=agent)
    yield Items(tuple(warnings(comparison)), label="caution", style="sentences")
    counts = Table("counts", _HEADER, tuple(_cells(comparison.counts)))
    yield Section("", (*_rows(comparison), counts))
    yield Items(tuple(findings(comparison)), label="finding", style="sentences")
    paired = any(metric.low for row in comparison.rows for metric in row.metrics)
    yield Paragraph(_PAIRS if paired else "", style="aside", views=terminal)
    last = tuple(Paragraph(text, style="aside") for text in verdict)
    yield Group(last, views=~agent)
    yield Paragraph(_DO_NOT, "Do not", views=agent)


def section(comparison: Comparison) -> Section:
    """The comparison of a run with its baseline, as a part of the page of the run."""
    lines = (*summary(comparison), *warnings(comparison), *findings(comparison))
    broken = [f"{r.name}: {note(r)}" for r in comparison.rows if not r.metrics]
    every = [(row.name, row.metrics) for row in comparison.rows]
    every.append(("counts", comparison.counts))
    cells = tuple((name, *row) for name, metrics in every for row in _cells(metrics))
    blocks = (
        Items((*lines, *broken)),
        Table("", ("strategy", *_HEADER), cells, style="compared"),
    )
    title = f"Compared with run {comparison.a['id']}"
    return Section(title, blocks, "compared", label="Compared", views=View.PAGE)


def _rows(comparison: Comparison) -> Iterator[Block]:
    for row in comparison.rows:
        text = note(row)
        whys = [f"{m.name}: {m.why}" for m in row.metrics if m.why]
        lines = tuple(filter(None, (text, *whys)))
        yield Table(row.name, _HEADER, tuple(_cells(row.metrics)), lines)
        if not row.metrics:
            yield Paragraph(f"{row.name}: {text}" if text else row.name, style="aside")


def note(row: Row) -> str:
    return row.broken or row.note or ("the control" if row.control else "")


def _cells(metrics: Sequence[Metric]) -> Iterator[tuple[str | Cell, ...]]:
    """Name, A, B and the verdict with its interval."""
    for metric in metrics:
        if metric.a is None and metric.b is None:
            continue
        show = _UNITS[metric.unit]
        verdict = Cell(words(metric), "regression" * metric.regression, "high")
        yield metric.name, show(metric.a), show(metric.b), verdict


def words(metric: Metric) -> str:
    """`1.12x slower (1.08-1.15)`; the interval reads in the verdict's direction."""
    low, high = metric.low, metric.high
    if low is None or high is None or metric.ratio is None:
        return metric.verdict
    if metric.significant and metric.ratio < 1:
        low, high = 1 / high, 1 / low
    elif not metric.significant and not low <= 1 <= high:
        return metric.verdict  # the verdict does not rest on this ratio
    return f"{metric.verdict} ({low:.2f}-{high:.2f})"


def warnings(comparison: Comparison) -> Iterator[str]:
    """Caveats that are printed before the numbers."""
    if comparison.unlike:
        yield (
            "DIFFERENT ENVIRONMENTS, so no verdict on time or memory: "
            + "; ".join(comparison.unlike)
        )
    eager = comparison.eager
    if eager and eager.significant:
        yield (
            f"Eager itself is {words(eager)} in B: the machine or the target changed."
            " A strategy counts as faster or slower only if its time and its gain over"
            " eager agree. For a clearer result, measure A again on this machine."
        )
    yield from (f"Note: {text}." for text in comparison.notes)


def summary(comparison: Comparison) -> Iterator[str]:
    """The regressions, then the decision."""
    if comparison.regressions:
        yield f"Worse in B: {'; '.join(comparison.regressions)}."
    else:
        yield {
            "better": "Better in B, with no regressions.",
            "not judged": "No regressions among the metrics that can be compared.",
        }.get(comparison.verdict, "No significant difference.")
    if comparison.uncompared:
        yield f"Not comparable: {'; '.join(comparison.uncompared)}."
    if comparison.decision:
        yield f"Decision for B: {comparison.decision}."


def findings(comparison: Comparison) -> Iterator[str]:
    for word, group in (("appeared", comparison.appeared), ("gone", comparison.gone)):
        for f in group:
            place = cell_sources.place(f.file, f.line) if f.file else "-"
            yield f"{word}: {place} {f.code} {f.severity}: {f.message}"
