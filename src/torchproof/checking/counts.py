"""The counts of a run, made from its events and its findings."""

from __future__ import annotations

from typing import Any

from torchproof.checking import rules
from torchproof.observe import audit
from torchproof.records import Event, Finding, Observation


def counts_of(
    observation: Observation, found: list[Finding] | None = None
) -> dict[str, int | None]:
    """The counts of a run, from its events and all of its findings."""
    events = observation.events
    found = rules.check(observation) if found is None else found
    return {
        "calls": observation.calls,
        "compiled_calls": observation.compiled_calls,
        "graphs": sum(event.kind == "graph" for event in events),
        "graph_breaks": sum(f.kind in {"graph_break", "skipped_frame"} for f in found),
        "skipped_frames": len({_skipped(event) for event in events} - {None}),
        "recompiles": sum(event.kind == "recompile" for event in events),
        **audit.skipped("").counts,  # those of part lifetimes
    }


def where_seen(
    observation: Observation, every: list[Finding], unseen: bool
) -> dict[str, Any]:
    """What was not observed is None, never 0."""
    counts = counts_of(observation, every)
    return dict.fromkeys(counts) if unseen else counts


def _skipped(event: Event) -> tuple[str, int, str] | None:
    """The function a frame belonged to that Dynamo gave up on."""
    if event.function is None or not (
        event.data.get("skips")
        or (event.kind == "compile_failure" and not event.data.get("raised"))
    ):
        return None
    return event.function.file, event.function.line, event.function.function
