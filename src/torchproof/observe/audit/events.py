"""Turns the watchers' entries into events for the rules and counts for the run.

The events are `dead_read` and `dead_held` (a tensor that was used or held after its
memory was reused), `cudagraph_skip` (a graph that is not captured), `cudagraph_split`
(an operation left out of a graph), `cudagraph` (the recordings and replays of one
graph) and `host_sync` (a line at which the host waits for the device). The parent loads
this file without torch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchproof.records import Event, Frame, frames_in

_QUOTE = re.compile(r"\.?\s*Found from\s*:?\s*")
_PREFIX = "skipping cudagraphs due to "
_LIFETIMES = ("dead_read", "dead_held")
_SYNC_FIELDS = ("explicit", "inside", "count", "calls")

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


def _lifetime(entry: Entry) -> Event:
    """The event of a tensor that was held after its memory was reused."""
    stacks = {name: _frames(entry[name]) for name in ("overwriter", "reader", "stored")}
    return Event(
        entry["kind"],
        frames=_frames(entry["producer"]),
        function=next(iter(_frames(entry["function"])), None),
        data={
            **stacks,
            "role": entry["role"],
            "holder": entry["holder"],
            "operation": entry["operation"],
            "times": entry["times"],
        },
        call=entry["call"],
    )


def _skips(
    entry: Entry, functions: Mapping[str, Frame], captured: Sequence[Entry]
) -> Iterable[Event]:
    """One event for each line that causes the skip, and at least one."""
    reason, quoted = explained(entry["reason"])
    graphs = [g for g in captured if g["compile_id"] == entry["compile_id"]]
    ungraphed = sum(graph["turns"].get("ungraphed", 0) for graph in graphs)
    runs = sum(sum(graph["turns"].values()) for graph in graphs)
    data = {"reason": reason, "ungraphed": ungraphed or None, "runs": runs or None}
    for frames in [frames_in(stack) for stack in entry["stacks"]] or [quoted]:
        yield Event(
            kind="cudagraph_skip",
            compile_id=entry["compile_id"],
            frames=frames,
            function=functions.get(entry["compile_id"]),
            data={**data, "site": _frames(entry["site"])},
            call=entry["call"],
        )


def explained(reason: str) -> tuple[str, tuple[Frame, ...]]:
    """Torch's reason without its prefix, and the stack that it quotes."""
    while reason.startswith(_PREFIX):
        reason = reason.removeprefix(_PREFIX)
    message, *quoted = _QUOTE.split(reason, maxsplit=1)
    return " ".join(message.split()), frames_in("\n".join(quoted))


def _split(entry: Entry, functions: Mapping[str, Frame]) -> Event:
    data = {"reason": entry["reason"], "operation": entry["operation"]}
    return Event(
        kind="cudagraph_split",
        compile_id=entry["compile_id"],
        frames=frames_in(entry["stack"] or ""),
        function=functions.get(entry["compile_id"]),
        data=data,
        call=entry["call"],
    )


def _graph(
    graph: Entry, functions: Mapping[str, Frame], moved: Sequence[Entry]
) -> Event:
    uses = {
        entry["name"]: frames_in(entry["stack"] or "")
        for entry in moved
        if entry["number"] == graph["number"]
    }
    return Event(
        kind="cudagraph",
        compile_id=graph["compile_id"],
        function=functions.get(graph["compile_id"]),
        data={**graph, "site": _frames(graph["site"]), "uses": uses},
    )


def _syncs(snapshot: Entry) -> Iterable[Event]:
    for place in snapshot.get("places", ()):
        data = {name: place[name] for name in _SYNC_FIELDS}
        data["of"] = snapshot["calls"]
        yield Event("host_sync", frames=_frames(place["site"]), data=data)


def _frames(plain_frames: Iterable[Sequence[Any]]) -> tuple[Frame, ...]:
    return tuple(Frame(*each) for each in plain_frames)
