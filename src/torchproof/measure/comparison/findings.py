"""Findings of two checks, matched by what stays when lines and values change."""

from __future__ import annotations

from collections import Counter

from torchproof.records import Finding, Run

# Findings of these categories are regressions whatever their severity.
COUNTED = {"Graph breaks", "Recompilation", "CUDA graphs", "Correctness"}


def appeared(a: Run, b: Run) -> tuple[Finding, ...]:
    """Open findings of B that A did not have; none where A was not seen to its end."""
    return _without(b, a) if _complete(a) else ()


def gone(a: Run, b: Run) -> tuple[Finding, ...]:
    return _without(a, b) if _complete(b) and not unchecked(a, b) else ()


def unchecked(a: Run, b: Run) -> list[str]:
    """Parts that were done in A and not in B."""
    done = {"passed", "found"}
    return [
        name
        for name, part in a.parts.items()
        if part.status in done
        and (name not in b.parts or b.parts[name].status not in done)
    ]


def counts(finding: Finding) -> bool:
    """Whether a finding that appeared is a regression."""
    return finding.severity != "low" or finding.category in COUNTED


def place(finding: Finding) -> str:
    return f"{finding.file}:{finding.line}" if finding.file else "-"


def _complete(run: Run) -> bool:
    return run.ending == "finished" and run.error is None


def _without(run: Run, other: Run) -> tuple[Finding, ...]:
    """Two alike in one function count as two."""
    left = Counter(f.identity for f in other.findings if f.status == "open")
    found = []
    for finding in run.findings:
        if finding.status != "open":
            continue
        if left[finding.identity]:
            left[finding.identity] -= 1
        else:
            found.append(finding)
    return tuple(found)
