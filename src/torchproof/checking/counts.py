"""Counts the graphs, breaks and recompiles of a run."""

from __future__ import annotations

from torchproof.checking import rules
from torchproof.records import (
    COUNTS,
    BreakEvent,
    FailureEvent,
    Finding,
    GraphEvent,
    Observation,
    RecompileEvent,
)


def counts_of(
    observation: Observation, findings: list[Finding] | None = None
) -> dict[str, int | None]:
    """The counts of a run, from its events and all of its findings.

    Part lifetimes has the others.
    """
    findings = rules.check(observation) if findings is None else findings
    return dict.fromkeys(COUNTS) | {
        "calls": observation.calls,
        "compiled_calls": observation.compiled_calls,
        "graphs": len(observation.of(GraphEvent)),
        "graph_breaks": sum(
            f.kind in {"graph_break", "skipped_frame"} for f in findings
        ),
        "skipped_frames": len(_skipped(observation)),
        "recompiles": len(observation.of(RecompileEvent)),
    }


def _skipped(observation: Observation) -> set[tuple[str, int, str]]:
    """The functions of frames that Dynamo skipped."""
    breaks = [event for event in observation.of(BreakEvent) if event.skips]
    # A trace does not tell whether a failure raised.
    failures = [each for each in observation.of(FailureEvent) if not each.raised]
    functions = {event.function for event in (*breaks, *failures)} - {None}
    return {(each.file, each.line, each.function) for each in functions if each}
