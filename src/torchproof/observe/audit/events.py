"""Turns the watchers' entries into events for the rules and counts for the run.

The parent loads this file without torch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchproof.records import (
    DeadHeldEvent,
    DeadReadEvent,
    Event,
    Frame,
    GraphSkipEvent,
    GraphSplitEvent,
    InputSize,
    RecordingEvent,
    SyncEvent,
    frames_in,
)

_QUOTE = re.compile(r"\.?\s*Found from\s*:?\s*")
_PREFIX = "skipping cudagraphs due to "
_LIFETIMES = ("dead_read", "dead_held")

Entry = Mapping[str, Any]


def events(entries: Iterable[Entry]) -> tuple[Event, ...]:
    """The events of all watchers."""
    entries = list(entries)
    by_kind = _by_kind(entries)
    functions = {
        entry["compile_id"]: Frame(*entry["code"])
        for entry in by_kind.get("cudagraph_function", ())
    }
    captured = _last(by_kind, "cudagraphs").get("graphs", ())
    moved = by_kind.get("cudagraph_moved", ())
    return (
        *(_lifetime(entry) for entry in entries if entry["kind"] in _LIFETIMES),
        *(
            event
            for entry in by_kind.get("cudagraph_skip", ())
            for event in _skips(entry, functions, captured)
        ),
        *(_split(entry, functions) for entry in by_kind.get("cudagraph_split", ())),
        *(_graph(graph, functions, moved) for graph in captured),
        *_syncs(_last(by_kind, "host_syncs")),
    )


def counts(entries: Iterable[Entry]) -> dict[str, int | float | None]:
    """The counts of a run; None without CUDA."""
    by_kind = _by_kind(entries)
    names = ("skips", "recordings", "replays", "pool_bytes", "kernel_share")
    unknown: dict[str, int | float | None] = {
        f"cudagraph_{name}": None for name in names
    }
    if not _last(by_kind, "cudagraphs_watched").get("cuda"):
        return unknown
    snapshot = _last(by_kind, "cudagraphs")
    turns: Counter[str] = Counter()
    for graph in snapshot.get("graphs", ()):
        turns.update(graph["turns"])
    kernels = _last(by_kind, "kernels")
    share = kernels["replayed"] / kernels["all"] if kernels.get("all") else None
    return unknown | {
        "cudagraph_skips": len(by_kind.get("cudagraph_skip", ())),
        "cudagraph_recordings": turns["recorded"],
        "cudagraph_replays": turns["replayed"],
        "cudagraph_pool_bytes": snapshot.get("pool_bytes", 0),
        "cudagraph_kernel_share": share,
    }


def _by_kind(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    by_kind: dict[str, list[Entry]] = {}
    for entry in entries:
        by_kind.setdefault(entry["kind"], []).append(entry)
    return by_kind


def _last(by_kind: Mapping[str, Sequence[Entry]], kind: str) -> Entry:
    return by_kind[kind][-1] if by_kind.get(kind) else {}


def _lifetime(entry: Entry) -> DeadReadEvent | DeadHeldEvent:
    """The event of a tensor that was held after its memory was reused."""
    kind = DeadReadEvent if entry["kind"] == "dead_read" else DeadHeldEvent
    return kind(
        frames=_frames(entry["producer"]),
        function=next(iter(_frames(entry["function"])), None),
        call=entry["call"],
        role=entry["role"],
        holder=entry["holder"],
        operation=entry["operation"],
        times=entry["times"],
        overwriter=_frames(entry["overwriter"]),
        reader=_frames(entry["reader"]),
        stored=_frames(entry["stored"]),
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
            site=_frames(entry["site"]),
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
        site=_frames(graph["site"]),
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
            frames=_frames(place["site"]),
            explicit=place["explicit"],
            inside=place["inside"],
            count=place["count"],
            calls=place["calls"],
            of=snapshot["calls"],
        )


def _frames(plain_frames: Iterable[Sequence[Any]]) -> tuple[Frame, ...]:
    return tuple(Frame(*each) for each in plain_frames)
