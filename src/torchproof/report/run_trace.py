"""Writes the timeline of a check or bench as trace events, for Perfetto.

Each process of the run is a process of the trace, each of its threads a track. All
times count from the moment that the first of them began.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchproof.records import Moment, ProcessTimeline, Run, Span
from torchproof.report.trace_events import (
    Event,
    Slice,
    complete,
    document,
    instant,
    lanes,
    named,
    ordered,
)

_NS = 1e9
_MAIN = "main thread"  # the first track of a process


def render(run: Run, processes: Sequence[ProcessTimeline]) -> str:
    """One JSON object in the Trace Event Format; idle processes are left out."""
    busy = [each for each in processes if each.spans or each.moments]
    origin = min((each.begin_ns for each in busy), default=0)
    about = {
        "run": run.id,
        "target": run.target,
        "command": run.command,
        "clock": "CLOCK_MONOTONIC of one machine, from the first process on",
        "missing": sorted({text for each in busy for text in each.missing}),
    }
    events = (
        event
        for number, process in enumerate(busy)
        for event in _process(number, process, origin)
    )
    return document(events, about)


def _process(number: int, process: ProcessTimeline, origin: int) -> Iterator[Event]:
    pid = process.pid
    yield named("process_name", process.name, pid)
    yield ordered("process_sort_index", number, pid)
    slices = [_slice(span, process, origin) for span in process.spans]
    threads: dict[str, int] = {}
    tracks = sorted(lanes(slices, nest=True), key=lambda track: track[0] != _MAIN)
    for thread, (name, members) in enumerate(tracks, 1):
        threads[name] = thread
        yield from _track(pid, thread, name)
        yield from (complete(each, pid, thread) for each in members)
    for moment in sorted(process.moments, key=lambda each: each.at_ns):
        if moment.track not in threads:
            threads[moment.track] = len(threads) + 1
            yield from _track(pid, threads[moment.track], moment.track)
        yield _instant(moment, origin, pid, threads[moment.track])


def _track(pid: int, thread: int, name: str) -> Iterator[Event]:
    yield named("thread_name", name, pid, thread)
    yield ordered("thread_sort_index", thread, pid, thread)


def _slice(span: Span, process: ProcessTimeline, origin: int) -> Slice:
    """A span that did not end lasts until the last sign of life of its process."""
    details, end_ns = span.details, span.end_ns
    if end_ns is None:
        end_ns = process.last_ns
        details = {**details, "unfinished": True}
    begin_s = (span.begin_ns - origin) / _NS
    end_s = (max(end_ns, span.begin_ns) - origin) / _NS
    return Slice(span.track, span.name, begin_s, end_s, span.category, details)


def _instant(moment: Moment, origin: int, pid: int, thread: int) -> Event:
    at_s = (moment.at_ns - origin) / _NS
    event = instant(moment.name, at_s, pid, thread)
    return {**event, "cat": moment.category, "args": moment.details}
