"""The numbers of a run next to those of its baseline: the section Before and after.

There is no verdict here, since this run does not hold the samples of the baseline.
`torchproof compare` gives one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torchproof.measure import TIMING_CONDITIONS, exclusion_reason, name_of
from torchproof.records import Baseline, Measurement, Run
from torchproof.report import numbers, run_words


@dataclass(frozen=True)
class Change:
    name: str
    before: str
    after: str
    tone: str = ""  # good or bad, if fewer is better and the number differs

    @property
    def verdict(self) -> str:
        return {"good": "better", "bad": "worse"}.get(self.tone, "")


def verdict(run: Run) -> list[str]:
    """What got worse since the earlier run, and why the two do not compare."""
    before = run.baseline
    if before is None:
        return []
    sentences = []
    if rises := [_rise(name, run, before) for name in before.worse]:
        sentences.append(f"Worse than run {before.id or '-'}: {', '.join(rises)}.")
    if before.differences:
        others = ", ".join(_OTHER[each] for each in before.differences)
        text = f"Not comparable with run {before.id or '-'}: {others}"
        if before.unjudged:
            count = numbers.amount(before.unjudged, "finding")
            text += f"; {count} of it did not occur and cannot be called resolved"
        sentences.append(f"{text}.")
    return sentences


_OTHER: dict[str, str] = {
    "target": "another target",
    "calls": "other calls",
    "device": "another device",
    "settings": "other settings",
}


def _rise(name: str, run: Run, before: Baseline) -> str:
    if name != "findings":
        old, new = (before.counts or {}).get(name), run.counts.get(name)
        return f"{name.replace('_', ' ')} {numbers.count(old)} -> {numbers.count(new)}"
    loud = [f for f in run.findings if f.status == "open" and not f.is_suspicion]
    known = before.identities or ()
    new_ones = [f for f in loud if f.severity != "low" and f.identity not in known]
    return numbers.amount(len(new_ones), "new finding")


def changes(run: Run) -> list[Change]:
    """One row for each number that either run has."""
    return [*counts(run), *_times(run, run.baseline or Baseline())]


def counts(run: Run) -> list[Change]:
    """What was counted, also without a baseline."""
    before = run.baseline or Baseline()
    return [*_findings(run, before), *_counts(run, before)]


def unlike(run: Run) -> list[str]:
    """The differences in the environment that affect times."""
    was = (run.baseline.environment if run.baseline else None) or {}
    differences = []
    for key in TIMING_CONDITIONS:
        before, after = was.get(key), run.environment.get(key)
        if before != after and before is not None and after is not None:
            differences.append(f"{key}: {before} before, {after} after")
    return differences


def _findings(run: Run, before: Baseline) -> Iterator[Change]:
    if run.verb != "check":
        return
    still_open = [f for f in run.findings if f.status == "open"]
    for severity, after in run_words.by_severity(still_open).items():
        was = (before.findings or {}).get(severity)
        yield _counted(f"open findings, {severity}", was, after)


def _counts(run: Run, before: Baseline) -> Iterator[Change]:
    was = before.counts or {}
    for name in [name for name in run.counts if name not in run_words.TOLD]:
        old, new = was.get(name), run.counts.get(name)
        if old is not None or new is not None:
            fewer_is_better = "calls" not in name and name != "graphs"
            yield _counted(name.replace("_", " "), old, new, judged=fewer_is_better)


def _counted(
    name: str, before: int | None, after: int | None, *, judged: bool = True
) -> Change:
    tone = ""
    if judged and before is not None and after is not None and after != before:
        tone = "good" if after < before else "bad"
    return Change(name, numbers.count(before), numbers.count(after), tone)


def _times(run: Run, before: Baseline) -> Iterator[Change]:
    """Times and memory of each strategy that either run measured."""
    old, new = _by_name(before.measurements or ()), _by_name(run.measurements)
    for name in dict.fromkeys([*old, *new]):
        pair = (old.get(name), new.get(name))
        yield from _pair(f"{name}, median step", map(_time, pair))
        yield from _pair(f"{name}, first call", map(_first_call, pair))
        yield from _pair(f"{name}, peak memory", map(_memory, pair))


def _pair(name: str, values: Iterable[str]) -> Iterator[Change]:
    before, after = values
    if (before, after) != (numbers.UNKNOWN, numbers.UNKNOWN):
        yield Change(name, before, after)


def _by_name(rows: Iterable[Measurement]) -> dict[str, Measurement]:
    return {name_of(row): row for row in rows if not exclusion_reason(row)}


def _time(row: Measurement | None) -> str:
    if row is None or row.low_ms is None or row.high_ms is None:
        return numbers.milliseconds(row.median_ms if row else None)
    spread = numbers.interval(row.low_ms, row.high_ms)
    return f"{numbers.milliseconds(row.median_ms)} ({spread})"


def _first_call(row: Measurement | None) -> str:
    return numbers.seconds(row.first_call_s if row else None)


def _memory(row: Measurement | None) -> str:
    return numbers.size(row.peak_bytes if row else None)
