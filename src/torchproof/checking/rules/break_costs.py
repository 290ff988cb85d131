"""Findings about breaks, with what each break was measured to cost."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchproof.records import SEVERITIES, Finding


def with_costs(
    findings: Sequence[Finding], gaps: Iterable[Mapping[str, Any]]
) -> list[Finding]:
    """Breaks get the microseconds measured at their line; costly ones come first.

    A skipped frame gets none: the time it takes is that of its own work as well.

    `gaps` are those of an anatomy: file, line, us, together_with. The order of findings
    is kept among those of equal severity and cost. A cost that is there already stays.
    """
    costs: dict[tuple[str, int], float] = {}
    counted_at: dict[tuple[str, int], int] = {}
    for gap in gaps:
        costs[os.path.abspath(gap["file"]), gap["line"]] = gap["us"]
        for file, line in gap["together_with"]:
            counted_at[os.path.abspath(file), line] = gap["line"]
    priced = []
    for finding in findings:
        priced.append(_priced(finding, costs, counted_at))
        if priced[-1].cost_us is not None and finding.file and finding.line:
            # What a line costs is counted once, however many breaks it has.
            place = (os.path.abspath(finding.file), finding.line)
            if costs.pop(place, None) is not None:
                counted_at[place] = finding.line
    return sorted(priced, key=_rank)


def _priced(
    finding: Finding,
    costs: Mapping[tuple[str, int], float],
    counted_at: Mapping[tuple[str, int], int],
) -> Finding:
    if finding.kind != "graph_break" or finding.file is None or finding.line is None:
        return finding
    place = (os.path.abspath(finding.file), finding.line)
    if finding.cost_us is None and place in costs:
        return replace(finding, cost_us=costs[place])
    if place in counted_at and place not in costs:
        told = f"its time is part of what the break at line {counted_at[place]} costs"
        return replace(finding, evidence=(*finding.evidence, told))
    return finding


def _rank(finding: Finding) -> tuple[object, ...]:
    cost = -1.0 if finding.cost_us is None else finding.cost_us
    return finding.status != "open", SEVERITIES.index(finding.severity), -cost
