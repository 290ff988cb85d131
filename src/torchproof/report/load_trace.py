"""Writes the timeline of a load test as trace events, for Perfetto or chrome://tracing.

Each strategy is a process with tracks for its workers, its queue and its stalls. All
times count from the start of the timetable, so that strategies lie below each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchproof.records import LoadResult, Run, Stall
from torchproof.report import load_sections
from torchproof.report.trace_events import (
    Event,
    Slice,
    complete,
    document,
    instant,
    lanes,
    microseconds,
    named,
    ordered,
)

_QUEUE = 0  # the thread of the queue; those of workers and stalls follow
_MS = 1e3


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
    return document(events, about)


def _process(number: int, result: LoadResult, calls: Sequence[str]) -> Iterator[Event]:
    yield named("process_name", result.strategy, number)
    yield ordered("process_sort_index", number, number)
    yield named("thread_name", "queue", number, _QUEUE)
    yield from _queue(number, result)
    served = lanes(_requests(result, calls), nest=False)
    stalled = lanes(map(_stall, result.stalls), nest=True)
    for thread, (name, slices) in enumerate([*served, *stalled], _QUEUE + 1):
        yield named("thread_name", name, number, thread)
        yield ordered("thread_sort_index", thread, number, thread)
        yield from (complete(each, number, thread) for each in slices)


def _requests(result: LoadResult, calls: Sequence[str]) -> Iterator[Slice]:
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
        yield Slice(track, f"request {number}", begin, end, "request", details)


def _stall(stall: Stall) -> Slice:
    details = {"request": stall.request, "file": stall.file, "line": stall.line}
    details = {name: value for name, value in details.items() if value is not None}
    track = f"stalls, {stall.thread}" if stall.thread else "stalls"
    return Slice(track, stall.text, stall.begin_s, stall.end_s, stall.kind, {**details})


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
            yield instant(name, due, process, _QUEUE)
            continue
        if begin > due:
            changes += [(due, 1), (begin, -1)]
            same = {"cat": "queue", "id": f"{process}.{number}", "name": "waiting"}
            details = {"request": number}
            yield {"ph": "b", **same, "ts": microseconds(due), **place, "args": details}
            yield {"ph": "e", **same, "ts": microseconds(begin), **place}
    waiting = 0
    for moment, change in sorted(changes):
        waiting += change
        args = {"requests": waiting}
        yield {
            "ph": "C",
            "name": "queue",
            "ts": microseconds(moment),
            **place,
            "args": args,
        }
