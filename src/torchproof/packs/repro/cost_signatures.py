"""Findings about what compiled code costs, as symptoms."""

from __future__ import annotations

import re

from torchproof.packs.repro.failure_signature import Symptom
from torchproof.records import Finding, Run


def evidence_after(finding: Finding, beginning: str) -> str:
    """What a line of evidence says after these words; empty where there is none."""
    lines = (line for line in finding.evidence if line.startswith(beginning))
    return next(lines, "").removeprefix(beginning)


def slowdown(finding: Finding, run: Run) -> Symptom | str:
    told = evidence_after(finding, "eager/compiled ")
    if not told:
        return "what a guard costs is no failure that another machine shows"
    ratio = float(told.split(",")[0])
    what = "no gain" if finding.code == "SP502" else "slower"
    times = (
        f"{1 / ratio:.1f} times as slow as" if what == "slower" else "no faster than"
    )
    return Symptom(
        finding.kind,
        "slowdown",
        f"compiled code is {times} eager",
        {"what": what, "ratio": ratio},
        search="torch.compile slower than eager",
        finding=finding,
    )


def compile_time(finding: Finding, run: Run) -> Symptom | str:
    each = [re.search(r"([\d.]+) s in the backend", line) for line in finding.evidence]
    seconds = sum(float(match[1]) for match in each if match)
    if not seconds:
        rows = [m for m in run.measurements if m.strategy != "eager" and m.first_call_s]
        if not rows:
            return "how long its compilation takes was not measured"
        seconds = max(m.first_call_s or 0.0 for m in rows)
    return Symptom(
        finding.kind,
        "compile_time",
        f"torch.compile takes {seconds:.0f} s",
        {"seconds": seconds},
        search="torch.compile compile time slow",
        finding=finding,
    )


def memory(finding: Finding, run: Run) -> Symptom | str:
    sizes = re.findall(r"(\d+) MiB", finding.message)
    if len(sizes) < 2 or not int(sizes[1]):
        return "how much memory it needs was not measured"
    ratio = int(sizes[0]) / int(sizes[1])
    return Symptom(
        finding.kind,
        "memory",
        f"compiled code needs {ratio:.1f} times the memory of eager",
        {"ratio": ratio},
        search="torch.compile memory higher than eager",
        finding=finding,
    )
