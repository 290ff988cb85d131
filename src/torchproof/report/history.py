"""The Markdown table that compares a run with the baseline stored in its record."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from torchproof.measure import name_of
from torchproof.records import SEVERITIES, Measurement, Run
from torchproof.report import bench_sections, markup, numbers

_COUNTS = ("graphs", "graph_breaks", "skipped_frames", "recompiles", "cudagraph_skips")
_SAME = ("torch", "python", "gpu", "device", "threads", "machine", "size", "train")
_HEADER = ("", "Before", "After", "Change")

Row = tuple[str, str, str, str]


def before_and_after(run: Run) -> Iterator[str]:
    if run.baseline is None:
        return
    yield "## Before and after"
    named = str(run.baseline.get("id", ""))
    yield f"Before: run {markup.code(named)}. After: this run."
    if other := list(_differences(run)):
        yield f"Their environments differ: {', '.join(other)}."
    times = list(_measured(run))
    yield markup.table(_HEADER, [*_findings(run), *_counts(run), *times])
    if times:
        command = shlex.join(["torchproof", "compare", named, run.id])
        yield f"{markup.code(command)} shows which times differ significantly."


def _differences(run: Run) -> Iterator[str]:
    before: Mapping[str, Any] = (run.baseline or {}).get("environment") or {}
    for name in _SAME:
        old, new = before.get(name), run.environment.get(name)
        if old != new and None not in (old, new):
            yield f"{name} {markup.inline(old)} and {markup.inline(new)}"


def _findings(run: Run) -> Iterator[Row]:
    before: Mapping[str, int] = (run.baseline or {}).get("findings") or {}
    for severity in SEVERITIES:
        now = sum(f.status == "open" and f.severity == severity for f in run.findings)
        yield _counted(f"open findings, {severity}", before.get(severity), now)


def _counts(run: Run) -> Iterator[Row]:
    before: Mapping[str, int | None] = (run.baseline or {}).get("counts") or {}
    for name in _COUNTS:
        old, new = before.get(name), run.counts.get(name)
        if old is not None or new is not None:
            yield _counted(name.replace("_", " "), old, new)


def _counted(name: str, old: int | None, new: int | None) -> Row:
    change = numbers.UNKNOWN
    if old is not None and new is not None:
        change = "none" if old == new else f"{new - old:+d}"
    return name, numbers.count(old), numbers.count(new), change


def _measured(run: Run) -> Iterator[Row]:
    """Times and memory of each strategy that either run measured."""
    plain = (run.baseline or {}).get("measurements") or ()
    old = _by_name(Measurement.from_json(row) for row in plain)
    new = _by_name(bench_sections.ranked(run))
    for name in dict.fromkeys([*old, *new]):
        pair = (old.get(name), new.get(name))
        yield _row(f"{name}, median step", *map(_time, pair))
        yield _row(f"{name}, first call", *map(_first, pair))
        yield _row(f"{name}, peak memory", *map(_memory, pair))


def _by_name(rows: Iterator[Measurement] | list[Measurement]) -> dict[str, Measurement]:
    return {name_of(row): row for row in rows if not row.variant and not row.error}


def _row(name: str, old: str, new: str) -> Row:
    return markup.inline(name), old, new, ""


def _time(row: Measurement | None) -> str:
    if row is None or row.median_ms is None:
        return numbers.UNKNOWN
    spread = numbers.interval(row.low_ms, row.high_ms)
    return f"{numbers.milliseconds(row.median_ms)} ({spread})"


def _first(row: Measurement | None) -> str:
    return numbers.seconds(row.first_call_s if row else None)


def _memory(row: Measurement | None) -> str:
    return numbers.size(row.peak_bytes if row else None)
