"""Markdown tables of measurements, for bench and optimisation reports."""

from __future__ import annotations

from collections.abc import Iterable

from torchproof.measure import name_of
from torchproof.records import Measurement
from torchproof.report import bench_sections, markup, numbers

_TIMES = ("Strategy", "Median step", "Interval", "Peak memory", "vs eager")
_BASELINE = (*_TIMES, "First call", "Numerics", "Verdict")


def baseline(rows: Iterable[Measurement]) -> str:
    """The times, memory, numerics and verdict of each strategy."""
    return markup.table(_BASELINE, map(_baseline, rows))


def _baseline(row: Measurement) -> tuple[str, ...]:
    gain = numbers.times(row.vs_eager, row.vs_eager_low, row.vs_eager_high)
    return (
        markup.inline(name_of(row)),
        numbers.milliseconds(row.median_ms),
        numbers.interval(row.low_ms, row.high_ms),
        numbers.size(row.peak_bytes),
        "reference" if row.strategy == "eager" else gain,
        numbers.seconds(row.first_call_s),
        markup.inline(bench_sections.numerics(row)),
        markup.inline(row.verdict or numbers.UNKNOWN),
    )


def of_section(section: bench_sections.Table) -> str:
    """A section of measurements: heading, table, sentences."""
    rows = [tuple(map(markup.inline, row)) for row in section.rows]
    parts = [f"### {markup.inline(section.title)}" if section.title else ""]
    parts += [
        markup.table(tuple(map(markup.inline, section.header)), rows) if rows else ""
    ]
    parts += [markup.bullets(map(markup.inline, section.lines))]
    return "\n\n".join(filter(None, parts))
