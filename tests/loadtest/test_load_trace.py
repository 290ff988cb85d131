"""The trace of a load test: valid events, on one clock, that nest on every track."""

from __future__ import annotations

import json
from collections import Counter

import load_runs
import pytest
from trace_events import Event, assert_valid

from torchproof.records import LoadResult, Requests, Run, Stall
from torchproof.report import load_trace


def events(run: Run) -> list[Event]:
    made = json.loads(load_trace.render(run))["traceEvents"]
    assert isinstance(made, list)
    return made


def names(made: list[Event], kind: str) -> dict[tuple[int, int], str]:
    named = [event for event in made if event["ph"] == "M" and event["name"] == kind]
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in named}


@pytest.fixture(scope="module")
def made() -> list[Event]:
    return events(load_runs.run())


def test_every_request_is_there_once(made: list[Event]) -> None:
    assert_valid(made)
    result = load_runs.recompiling()
    requests = [e for e in made if e["pid"] == 1 and e.get("cat") == "request"]
    assert len(requests) == len(result.requests.arrival_s)
    (culprit,) = (e for e in requests if e["name"] == "request 700")
    begin = result.requests.begin_s[700]
    assert culprit["ts"] == pytest.approx(begin * 1e6)
    assert culprit["args"]["slow"] is True and culprit["args"]["causes"] == ["LT101"]


def test_the_queue_is_empty_in_the_end(made: list[Event]) -> None:
    for process in (1, 2, 3):
        lengths = [
            event["args"]["requests"]
            for event in made
            if event["ph"] == "C" and event["pid"] == process
        ]
        assert min(lengths) == lengths[-1] == 0
    unserved = load_runs.overloaded().unserved
    assert Counter(e["pid"] for e in made if e["ph"] == "i") == {2: unserved}


def test_requests_of_a_batch_have_slots() -> None:
    """Two requests served together, and a third one that overlaps both."""
    requests = Requests(
        arrival_s=(0.0, 0.0, 0.1, 0.4),
        begin_s=(0.1, 0.1, 0.2, 0.4),
        end_s=(0.3, 0.3, 0.4, 0.5),
        call=(0, 0, 0, 0),
        worker=(0, 0, 0, 0),
        batch=(2, 2, 1, 1),
    )
    stalls = (  # the second overlaps the first without being part of it
        Stall("compile", 0.1, 0.3, "compile", thread="t"),
        Stall("gil", 0.2, 0.35, "GIL", thread="t"),
        Stall("inductor", 0.15, 0.2, "Inductor", thread="t"),
    )
    made = events(load_runs.run([LoadResult("full", requests, stalls=stalls)]))
    assert_valid(made)
    tracks = [*names(made, "thread_name").values()]
    assert tracks == [
        *("queue", "worker 0", "worker 0, slot 2", "worker 0, slot 3"),
        *("stalls, t", "stalls, t, slot 2"),
    ]
