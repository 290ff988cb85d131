"""Writes the timeline of a load test as trace events, for Perfetto or chrome://tracing.

Each strategy is a process with tracks for its workers, its queue and its stalls. All
times count from the start of the timetable, so that strategies lie below each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchproof.records import LoadResult, Run, Stall
from torchproof.report import load_sections

_QUEUE = 0  # the thread of the queue; those of workers and stalls follow
_MS = 1e3
Event = dict[str, Any]


def render(run: Run) -> str:
    """One JSON object in the Trace Event Format."""
    test = load_sections.load_test_of(run)
    events = [
        event
        for number, result in enumerate(test.results, 1)
        for event in _process(number, result, test.calls)
    ]
    about = {
        "run": run.id,
        "target": run.target,
        "command": run.command,
        "load": load_sections.question(test),
    }
    document = {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}
    return json.dumps(document, separators=(",", ":")) + "\n"


@dataclass(frozen=True)
class _Slice:
    """Something that lasts, on a track of its own kind."""

    track: str
    name: str
    begin_s: float
    end_s: float
    category: str
    details: dict[str, Any] = field(default_factory=dict, hash=False)


def _process(number: int, result: LoadResult, calls: Sequence[str]) -> Iterator[Event]:
    yield _named("process_name", result.strategy, number)
    yield _sorted("process_sort_index", number, number)
    yield _named("thread_name", "queue", number, _QUEUE)
    yield from _queue(number, result)
    served = _lanes(_requests(result, calls), nest=False)
    stalled = _lanes(map(_stall, result.stalls), nest=True)
    for thread, (name, slices) in enumerate([*served, *stalled], _QUEUE + 1):
        yield _named("thread_name", name, number, thread)
        yield _sorted("thread_sort_index", thread, number, thread)
        yield from (_complete(each, number, thread) for each in slices)


def _requests(result: LoadResult, calls: Sequence[str]) -> Iterator[_Slice]:
    requests = result.requests
    slow = {n for tail in load_sections.tails_of(result) for n in tail.slow}
    codes: dict[int, list[str]] = {}
    for tail in load_sections.tails_of(result):
        for cause in tail.causes:
            for member in (*cause.culprits, *cause.victims):
                codes.setdefault(member, []).append(cause.code)
    times = zip(requests.arrival_s, requests.begin_s, requests.end_s, strict=True)
    for number, (due, begin, end) in enumerate(times):
        if begin is None or end is None:
            continue
        call = requests.call[number]
        details = {
            "call": calls[call] if call < len(calls) else call,
            "latency_ms": round((end - due) * _MS, 3),
            "queueing_ms": round((begin - due) * _MS, 3),
            "slow": number in slow,
            "causes": codes.get(number, []),
        }
        worker = requests.worker[number]
        track = "worker" if worker is None else f"worker {worker}"
        yield _Slice(track, f"request {number}", begin, end, "request", details)


def _stall(stall: Stall) -> _Slice:
    details = {"request": stall.request, "file": stall.file, "line": stall.line}
    details = {name: value for name, value in details.items() if value is not None}
    track = f"stalls, {stall.thread}" if stall.thread else "stalls"
    return _Slice(
        track, stall.text, stall.begin_s, stall.end_s, stall.kind, {**details}
    )


@dataclass
class _Lane:
    slices: list[_Slice] = field(default_factory=list)
    open_ends: list[float] = field(default_factory=list)  # the innermost is the last

    def has_room(self, each: _Slice, *, nest: bool) -> bool:
        """Whether nothing on the lane overlaps it, unless one may contain it."""
        while self.open_ends and self.open_ends[-1] <= each.begin_s:
            self.open_ends.pop()
        return not self.open_ends or (nest and each.end_s <= self.open_ends[-1])

    def add(self, each: _Slice) -> None:
        self.slices.append(each)
        self.open_ends.append(each.end_s)


def _lanes(
    slices: Iterable[_Slice], *, nest: bool
) -> Iterator[tuple[str, list[_Slice]]]:
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


# -- the queue -------------------------------------------------------------------------


def _queue(process: int, result: LoadResult) -> Iterator[Event]:
    """Each request from its arrival until a worker takes it, and their number."""
    requests = result.requests
    changes: list[tuple[float, int]] = []
    place = {"pid": process, "tid": _QUEUE}
    for number, due in enumerate(requests.arrival_s):
        begin = requests.begin_s[number]
        if begin is None:
            name = f"request {number} without an answer"
            yield {"ph": "i", "name": name, "ts": _us(due), "s": "t", **place}
            continue
        if begin > due:
            changes += [(due, 1), (begin, -1)]
            same = {"cat": "queue", "id": f"{process}.{number}", "name": "waiting"}
            details = {"request": number}
            yield {"ph": "b", **same, "ts": _us(due), **place, "args": details}
            yield {"ph": "e", **same, "ts": _us(begin), **place}
    waiting = 0
    for moment, change in sorted(changes):
        waiting += change
        args = {"requests": waiting}
        yield {"ph": "C", "name": "queue", "ts": _us(moment), **place, "args": args}


# -- events ----------------------------------------------------------------------------


def _us(seconds: float) -> float:
    """Microseconds, of whole nanoseconds: rounding makes no neighbours overlap."""
    return round(seconds * 1e9) / 1e3


def _complete(each: _Slice, process: int, thread: int) -> Event:
    begin, end = _us(each.begin_s), _us(each.end_s)
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


def _named(kind: str, name: str, process: int, thread: int = 0) -> Event:
    place = {"pid": process, "tid": thread}
    return {"ph": "M", "name": kind, **place, "args": {"name": name}}


def _sorted(kind: str, index: int, process: int, thread: int = 0) -> Event:
    place = {"pid": process, "tid": thread}
    return {"ph": "M", "name": kind, **place, "args": {"sort_index": index}}
