"""What every trace in the Trace Event Format has to be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

Event = dict[str, Any]
# The keys that the format asks of each phase.
NEEDED = {
    "M": {"name", "pid", "args"},
    "X": {"name", "cat", "ts", "dur", "pid", "tid"},
    "b": {"name", "cat", "id", "ts", "pid", "tid"},
    "e": {"name", "cat", "id", "ts", "pid", "tid"},
    "C": {"name", "ts", "pid", "args"},
    "i": {"name", "ts", "pid", "tid", "s"},
}
_ROUNDING_US = 0.0005


def assert_valid(events: Sequence[Event]) -> None:
    """Each event is complete; slices of a track lie beside or inside each other."""
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    waits: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        assert NEEDED[event["ph"]] <= set(event) and event["name"], event
        assert event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0
        if event["ph"] == "X":
            times = event["ts"], -event["ts"] - event["dur"]
            tracks[event["pid"], event["tid"]].append(times)
        if event["ph"] in "be":
            waits[event["pid"], event["id"]].append(event)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert tracks.keys() <= named
    for members in tracks.values():
        ends: list[float] = []
        for begin, end in ((begin, -end) for begin, end in sorted(members)):
            while ends and ends[-1] <= begin + _ROUNDING_US:
                ends.pop()
            assert not ends or end <= ends[-1] + _ROUNDING_US
            ends.append(end)
    for begin, end in waits.values():
        assert (begin["ph"], end["ph"]) == ("b", "e") and begin["ts"] < end["ts"]
