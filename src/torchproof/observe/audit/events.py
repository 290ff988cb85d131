"""Turns the watchers' entries into events for the rules and counts for the run.

The parent loads this file without torch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from torchproof.process import Entry, Followed
from torchproof.records import (
    DeadTensorEvent,
    Event,
    Frame,
    GraphSkipEvent,
    GraphSplitEvent,
    InputSize,
    RecordingEvent,
    SyncEvent,
    frames_in,
    frames_of,
)

_QUOTE = re.compile(r"\.?\s*Found from\s*:?\s*")
_PREFIX = "skipping cudagraphs due to "
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
    captured = child.last("cudagraphs").get("graphs", ())
    moved = child.of("cudagraph_moved")
    return (
        *(_lifetime(each) for each in child.entries if each["kind"] in _LIFETIMES),
        *(
            event
            for entry in child.of("cudagraph_skip")
            for event in _skips(entry, functions, captured)
        ),
        *(_split(entry, functions) for entry in child.of("cudagraph_split")),
        *(_graph(graph, functions, moved) for graph in captured),
        *_syncs(child.last("host_syncs")),
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


def _lifetime(entry: Entry) -> DeadTensorEvent:
    """The event of a tensor that was held after its memory was reused."""
    return DeadTensorEvent(
        frames=frames_of(entry["producer"]),
        function=next(iter(frames_of(entry["function"])), None),
        call=entry["call"],
        is_read=entry["kind"] == "dead_read",
        role=entry["role"],
        holder=entry["holder"],
        operation=entry["operation"],
        times=entry["times"],
        overwriter=frames_of(entry["overwriter"]),
        reader=frames_of(entry["reader"]),
        stored=frames_of(entry["stored"]),
    )


def _skips(
    entry: Entry, functions: Mapping[str, Frame], captured: Sequence[Entry]
) -> Iterable[GraphSkipEvent]:
    """One event for each line that causes the skip, and at least one."""
    reason, quoted = explained(entry["reason"])
    graphs = [g for g in captured if g["compile_id"] == entry["compile_id"]]
    ungraphed = sum(graph["turns"].get("ungraphed", 0) for graph in graphs)
    runs = sum(sum(graph["turns"].values()) for graph in graphs)
    for frames in [frames_in(stack) for stack in entry["stacks"]] or [quoted]:
        yield GraphSkipEvent(
            compile_id=entry["compile_id"],
            frames=frames,
            function=functions.get(entry["compile_id"]),
            call=entry["call"],
            site=frames_of(entry["site"]),
            reason=reason,
            ungraphed=ungraphed or None,
            runs=runs or None,
        )


def explained(reason: str) -> tuple[str, tuple[Frame, ...]]:
    """Torch's reason without its prefix, and the stack that it quotes."""
    while reason.startswith(_PREFIX):
        reason = reason.removeprefix(_PREFIX)
    message, *quoted = _QUOTE.split(reason, maxsplit=1)
    return " ".join(message.split()), frames_in("\n".join(quoted))


def _split(entry: Entry, functions: Mapping[str, Frame]) -> GraphSplitEvent:
    return GraphSplitEvent(
        compile_id=entry["compile_id"],
        frames=frames_in(entry["stack"] or ""),
        function=functions.get(entry["compile_id"]),
        call=entry["call"],
        reason=entry["reason"],
        operation=entry["operation"],
    )


def _graph(
    graph: Entry, functions: Mapping[str, Frame], moved: Sequence[Entry]
) -> RecordingEvent:
    sizes = (
        InputSize(tuple(tuple(shape) for shape in shapes), runs)
        for shapes, runs in graph["sizes"]
    )
    return RecordingEvent(
        compile_id=graph["compile_id"],
        function=functions.get(graph["compile_id"]),
        site=frames_of(graph["site"]),
        phase=graph["phase"],
        turns=graph["turns"],
        sizes=tuple(sizes),
        distinct=graph["distinct"],
        again=graph["again"],
        moved=tuple(graph["moved"]),
        uses={
            entry["name"]: frames_in(entry["stack"] or "")
            for entry in moved
            if entry["number"] == graph["number"]
        },
        since=graph["since"],
        pool_bytes=graph["pool_bytes"],
    )


def _syncs(snapshot: Entry) -> Iterable[SyncEvent]:
    for place in snapshot.get("places", ()):
        yield SyncEvent(
            frames=frames_of(place["site"]),
            explicit=place["explicit"],
            inside=place["inside"],
            count=place["count"],
            calls=place["calls"],
            of=snapshot["calls"],
        )
