"""Counts the graphs, breaks and recompiles of a run."""

from __future__ import annotations

from torchproof.checking import rules
from torchproof.observe import audit
from torchproof.records import Event, Finding, Observation


def counts_of(
    observation: Observation, findings: list[Finding] | None = None
) -> dict[str, int | None]:
    """The counts of a run, from its events and all of its findings."""
    events = observation.events
    findings = rules.check(observation) if findings is None else findings
    return {
        "calls": observation.calls,
        "compiled_calls": observation.compiled_calls,
        "graphs": sum(event.kind == "graph" for event in events),
        "graph_breaks": sum(
            f.kind in {"graph_break", "skipped_frame"} for f in findings
        ),
        "skipped_frames": len({_skipped(event) for event in events} - {None}),
        "recompiles": sum(event.kind == "recompile" for event in events),
        **audit.skipped("").counts,  # the counts of part lifetimes
    }


def _skipped(event: Event) -> tuple[str, int, str] | None:
    """The function of a frame that Dynamo skipped; None for other events."""
    if event.function is None or not (
        event.data.get("skips")
        or (event.kind == "compile_failure" and not event.data.get("raised"))
    ):
        return None
    return event.function.file, event.function.line, event.function.function
