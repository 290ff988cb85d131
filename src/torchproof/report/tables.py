"""Tables of measurements as Markdown, for benches and for the optimisation report."""

from __future__ import annotations

from collections.abc import Iterable

from torchproof.records import Measurement
from torchproof.report import marks, numbers, sections
from torchproof.verdict import name_of

_TIMES = ("Strategy", "Median step", "Interval", "Peak memory", "vs eager")
_BASELINE = (*_TIMES, "First call", "Numerics", "Verdict")


def baseline(rows: Iterable[Measurement]) -> str:
    """What each strategy takes and what it is worth."""
    return marks.table(_BASELINE, map(_baseline, rows))


def _baseline(row: Measurement) -> tuple[str, ...]:
    gain = numbers.times(row.vs_eager, row.vs_eager_low, row.vs_eager_high)
    return (
        marks.inline(name_of(row)),
        numbers.milliseconds(row.median_ms),
        numbers.interval(row.low_ms, row.high_ms),
        numbers.size(row.peak_bytes),
        "reference" if row.strategy == "eager" else gain,
        numbers.seconds(row.first_call_s),
        marks.inline(sections.numerics(row)),
        marks.inline(row.verdict or numbers.UNKNOWN),
    )


def of_section(found: sections.Table) -> str:
    """A section of measurements: heading, table, sentences."""
    rows = [tuple(map(marks.inline, row)) for row in found.rows]
    parts = [f"### {marks.inline(found.title)}" if found.title else ""]
    parts += [marks.table(tuple(map(marks.inline, found.header)), rows) if rows else ""]
    parts += [marks.bullets(map(marks.inline, found.lines))]
    return "\n\n".join(filter(None, parts))
