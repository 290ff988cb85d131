"""Whether two runs asked the same question, and which findings they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torchproof.records.identity import is_recorded, stable_path
from torchproof.records.run import Finding, Run

Place = tuple[str, str | None, str]


def same_calls(one: Run, other: Run) -> bool:
    """Whether both runs made the same calls, as far as both have recorded them.

    The order is no part of it. An older record has only their number.
    """
    if one.calls and other.calls:
        return dict(one.calls) == dict(other.calls)
    counts = {run.counts.get("calls") for run in (one, other)} - {None}
    return len(counts) < 2


def place_of_finding(finding: Finding) -> Place:
    """The parts of an identity that are known without a key."""
    return finding.code, finding.function, stable_path(finding.file or "")


def recorded_places(findings: Iterable[Finding]) -> set[Place]:
    """The places of findings whose older record has an identity and no key."""
    return {place_of_finding(f) for f in findings if is_recorded(f.key)}


def findings_only_in(run: Run, other: Run) -> list[Finding]:
    """Open findings of a run that another has not, each matched at most once.

    A finding of an older record is the same as any of its code in its function.
    """
    unmatched = Counter(f.identity for f in other.findings if f.status == "open")
    places = {place_of_finding(f) for f in other.findings}
    older = recorded_places(other.findings)
    found = []
    for finding in run.findings:
        if finding.status != "open":
            continue
        if unmatched[finding.identity]:
            unmatched[finding.identity] -= 1
            continue
        known = places if is_recorded(finding.key) else older
        if place_of_finding(finding) not in known:
            found.append(finding)
    return found
