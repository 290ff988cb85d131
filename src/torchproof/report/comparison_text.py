"""Renders a comparison of two runs as text: metrics, verdicts, findings, summary."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torchproof.measure import Comparison, Metric, Row
from torchproof.records import cells as cell_sources
from torchproof.report import numbers, text_layout
from torchproof.report.text_layout import INDENT, wrap

_UNITS: dict[str, Callable[[float | None], str]] = {
    "ms": numbers.milliseconds,
    "s": numbers.seconds,
    "bytes": numbers.size,
    "count": numbers.count,
    "per_s": numbers.per_second,
    "x": lambda value: numbers.times(value, None, None),
}


def to_text(comparison: Comparison, *, width: int = 80) -> str:
    blocks = [
        [f"{n}  {run['id']}  {run['target']}" for n, run in _runs(comparison)],
        [*_warnings(comparison, width)],
        *([*_row(row, width)] for row in comparison.rows),
        [*_counts(comparison, width)],
        [*_findings(comparison, width)],
        [*_ending(comparison, width)],
    ]
    return text_layout.joined(blocks)


def _runs(comparison: Comparison) -> list[tuple[str, Mapping[str, Any]]]:
    return [("A", comparison.a), ("B", comparison.b)]


def to_json(comparison: Comparison) -> str:
    return json.dumps(comparison.to_json(), indent=1) + "\n"


def cells(metric: Metric) -> tuple[str, str, str, str]:
    """Name, A, B and the verdict with its interval."""
    show = _UNITS[metric.unit]
    return metric.name, show(metric.a), show(metric.b), words(metric)


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
    yield from (f"Note: {note}." for note in comparison.notes)


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
        for finding in group:
            place = (
                cell_sources.place(finding.file, finding.line) if finding.file else "-"
            )
            severity = f"{finding.code} {finding.severity}"
            yield f"{word}: {place} {severity}: {finding.message}"


def _warnings(comparison: Comparison, width: int) -> Iterator[str]:
    for text in warnings(comparison):
        yield from wrap(text, width, "", INDENT)


def _row(row: Row, width: int) -> Iterator[str]:
    note = row.broken or row.note or ("the control" if row.control else "")
    yield from wrap(f"{row.name}: {note}" if note else row.name, width, "", INDENT)
    yield from _metrics(row.metrics, width)


def _metrics(metrics: tuple[Metric, ...], width: int) -> Iterator[str]:
    measured = [m for m in metrics if m.a is not None or m.b is not None]
    for metric in measured:
        name, a, b, verdict = cells(metric)
        mark = "  REGRESSION" if metric.regression else ""
        yield f"{INDENT}{name:<12} {a:>10}  ->{b:>11}   {verdict}{mark}"
        if metric.why:
            yield from wrap(metric.why, width, INDENT * 2)


def _counts(comparison: Comparison, width: int) -> Iterator[str]:
    if lines := list(_metrics(comparison.counts, width)):
        yield from ("counts", *lines)


def _findings(comparison: Comparison, width: int) -> Iterator[str]:
    for line in findings(comparison):
        yield from wrap(line, width, "", INDENT)


def _ending(comparison: Comparison, width: int) -> Iterator[str]:
    if any(metric.low for row in comparison.rows for metric in row.metrics):
        yield from wrap(
            "The runs were measured at different times: each interval comes from one"
            " run, and the runs are not paired.",
            width,
            rest=INDENT,
        )
    for text in summary(comparison):
        yield from wrap(text, width, "", INDENT)
