"""Turns the watchers' entries into events for the rules and counts for the run.

The parent loads this file without torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from torchproof.process import Followed
from torchproof.records import (
    CaptureEvent,
    DeadTensorEvent,
    Event,
    Frame,
    GraphSkipEvent,
    GraphSplitEvent,
    RecordingEvent,
    SyncEvent,
)

_LIFETIMES = ("dead_read", "dead_held")

COUNTS = tuple(
    f"cudagraph_{name}"
    for name in ("skips", "recordings", "replays", "pool_bytes", "kernel_share")
)


def events(child: Followed) -> tuple[Event, ...]:
    """The events of all watchers."""
    functions = {
        entry["compile_id"]: Frame(*entry["code"])
        for entry in child.of("cudagraph_function")
    }
    snapshot = child.last("cudagraphs").get("graphs", ())
    captured = [RecordingEvent.from_json(graph) for graph in snapshot]
    lifetimes = (entry for entry in child.entries if entry["kind"] in _LIFETIMES)
    skips = (each for entry in child.of("cudagraph_skip") for each in entry["events"])
    about_graphs: list[CaptureEvent] = [
        *(_with_runs(GraphSkipEvent.from_json(each), captured) for each in skips),
        *map(GraphSplitEvent.from_json, child.of("cudagraph_split")),
        *captured,
    ]
    return (
        *map(DeadTensorEvent.from_json, lifetimes),
        *(replace(e, function=functions.get(e.compile_id)) for e in about_graphs),
        *map(SyncEvent.from_json, child.last("host_syncs").get("places", ())),
    )


def counts(child: Followed) -> dict[str, float | None]:
    """The counts of a run; None without CUDA."""
    if not child.last("cudagraphs_watched").get("cuda"):
        return dict.fromkeys(COUNTS)
    snapshot = child.last("cudagraphs")
    turns: Counter[str] = Counter()
    for graph in snapshot.get("graphs", ()):
        turns.update(graph["turns"])
    kernels = child.last("kernels")
    share = kernels["replayed"] / kernels["all"] if kernels.get("all") else None
    skips, pool = len(child.of("cudagraph_skip")), snapshot.get("pool_bytes", 0)
    values = (skips, turns["recorded"], turns["replayed"], pool, share)
    return dict(zip(COUNTS, values, strict=True))


def _with_runs(
    skip: GraphSkipEvent, captured: Sequence[RecordingEvent]
) -> GraphSkipEvent:
    graphs = [graph for graph in captured if graph.compile_id == skip.compile_id]
    ungraphed = sum(graph.turns.get("ungraphed", 0) for graph in graphs)
    runs = sum(graph.runs for graph in graphs)
    return replace(skip, ungraphed=ungraphed or None, runs=runs or None)
