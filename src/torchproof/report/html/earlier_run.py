"""The numbers of a run next to those of its baseline, for the section Before and after.

There is no verdict here, since this run does not hold the samples of the baseline.
`torchproof compare` gives one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchproof.measure import TIMING_CONDITIONS, exclusion_reason, name_of
from torchproof.records import SEVERITIES, Measurement, Run
from torchproof.report import capture_summary, numbers
from torchproof.report.html import charts


@dataclass(frozen=True)
class Change:
    name: str
    before: str
    after: str
    tone: str = ""  # good or bad, if fewer is better and the number differs


def changes(run: Run) -> list[Change]:
    """One row for each number that either run has."""
    if run.baseline is None:
        return []
    return [*_findings(run), *_counts(run), *_times(run)]


def unlike(run: Run) -> list[str]:
    """The differences in the environment that affect times."""
    was = (run.baseline or {}).get("environment") or {}
    differences = []
    for key in TIMING_CONDITIONS:
        before, after = was.get(key), run.environment.get(key)
        if before != after and before is not None and after is not None:
            differences.append(f"{key}: {before} before, {after} after")
    return differences


def _findings(run: Run) -> Iterator[Change]:
    was = (run.baseline or {}).get("findings")
    if not isinstance(was, Mapping):
        return
    open_ = [f for f in run.findings if f.status == "open"]
    for severity in SEVERITIES:
        after = sum(f.severity == severity for f in open_)
        yield _fewer(f"open findings, {severity}", was.get(severity), after)


def _counts(run: Run) -> Iterator[Change]:
    was = (run.baseline or {}).get("counts") or {}
    for name in [name for name in run.counts if name not in capture_summary.TOLD]:
        before, after = was.get(name), run.counts.get(name)
        if before is None and after is None:
            continue
        label = name.replace("_", " ")
        if "calls" in name or name == "graphs":
            yield Change(label, numbers.count(before), numbers.count(after))
        else:
            yield _fewer(label, before, after)


def _fewer(name: str, before: Any, after: Any) -> Change:
    """A number of which fewer is better."""
    tone = ""
    if charts.known(before) and charts.known(after) and before != after:
        tone = "good" if after < before else "bad"
    return Change(name, numbers.count(before), numbers.count(after), tone)


def _times(run: Run) -> Iterator[Change]:
    plain = (run.baseline or {}).get("measurements") or ()
    was = {name_of(row): row for row in map(Measurement.from_json, plain)}
    for row in run.measurements:
        before = was.get(name_of(row))
        if before and not exclusion_reason(row) and not exclusion_reason(before):
            name = name_of(row)
            yield Change(f"{name}: median call", _time(before), _time(row))
            sizes = numbers.size(before.peak_bytes), numbers.size(row.peak_bytes)
            if sizes != (numbers.UNKNOWN, numbers.UNKNOWN):
                yield Change(f"{name}: peak memory", *sizes)


def _time(row: Measurement) -> str:
    text = numbers.milliseconds(row.median_ms)
    if row.low_ms is None or row.high_ms is None:
        return text
    return f"{text} ({numbers.interval(row.low_ms, row.high_ms)})"
