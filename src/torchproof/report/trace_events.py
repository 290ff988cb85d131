"""Builds trace events, for Perfetto or chrome://tracing.

A process has tracks, each with slices that lie beside or inside each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]


def document(events: Iterable[Event], about: Mapping[str, Any]) -> str:
    """One JSON object in the Trace Event Format."""
    plain = {
        "displayTimeUnit": "ms",
        "otherData": dict(about),
        "traceEvents": list(events),
    }
    return json.dumps(plain, separators=(",", ":")) + "\n"


@dataclass(frozen=True)
class Slice:
    """Something that lasts, on a track of its own kind."""

    track: str
    name: str
    begin_s: float
    end_s: float
    category: str
    details: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass
class _Lane:
    slices: list[Slice] = field(default_factory=list)
    open_ends: list[float] = field(default_factory=list)  # the innermost is the last

    def has_room(self, each: Slice, *, nest: bool) -> bool:
        """Whether nothing on the lane overlaps it, unless one may contain it."""
        while self.open_ends and self.open_ends[-1] <= each.begin_s:
            self.open_ends.pop()
        return not self.open_ends or (nest and each.end_s <= self.open_ends[-1])

    def add(self, each: Slice) -> None:
        self.slices.append(each)
        self.open_ends.append(each.end_s)


def lanes(slices: Iterable[Slice], *, nest: bool) -> Iterator[tuple[str, list[Slice]]]:
    """As many lanes for each track as it needs, each with its name."""
    tracks: dict[str, list[_Lane]] = {}
    for each in sorted(slices, key=lambda s: (s.track, s.begin_s, -s.end_s)):
        lanes = tracks.setdefault(each.track, [])
        lane = next((ln for ln in lanes if ln.has_room(each, nest=nest)), None)
        if lane is None:
            lane = _Lane()
            lanes.append(lane)
        lane.add(each)
    for name, lanes in tracks.items():
        for number, lane in enumerate(lanes, 1):
            yield name if number == 1 else f"{name}, slot {number}", lane.slices


def microseconds(seconds: float) -> float:
    """Microseconds, of whole nanoseconds: rounding makes no neighbours overlap."""
    return round(seconds * 1e9) / 1e3


def complete(each: Slice, process: int, thread: int) -> Event:
    begin, end = microseconds(each.begin_s), microseconds(each.end_s)
    return {
        "ph": "X",
        "name": each.name,
        "cat": each.category,
        "ts": begin,
        "dur": round(max(0.0, end - begin), 3),
        "pid": process,
        "tid": thread,
        "args": each.details,
    }


def named(kind: str, name: str, process: int, thread: int = 0) -> Event:
    place = {"pid": process, "tid": thread}
    return {"ph": "M", "name": kind, **place, "args": {"name": name}}


def ordered(kind: str, index: int, process: int, thread: int = 0) -> Event:
    place = {"pid": process, "tid": thread}
    return {"ph": "M", "name": kind, **place, "args": {"sort_index": index}}


def instant(name: str, at_s: float, process: int, thread: int) -> Event:
    place = {"pid": process, "tid": thread}
    return {"ph": "i", "name": name, "ts": microseconds(at_s), "s": "t", **place}
