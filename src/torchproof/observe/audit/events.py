"""Turns the watchers' entries into events for the rules and counts for the run.

The parent loads this file without torch, so no import here may load torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchproof.observe.audit import outcomes
from torchproof.records import Event, Frame

Entries = Sequence[Mapping[str, Any]]
_LIFETIMES = ("dead_read", "dead_held")


@dataclass(frozen=True)
class RequestedGraphs:
    """How many graphs requested CUDA graphs, and whether they were simulated."""

    graphs: int
    simulated: bool


def events(entries: Entries) -> tuple[Event, ...]:
    """The events of all watchers."""
    return (*_lifetimes(entries), *outcomes.events(entries))


def counts(entries: Entries) -> dict[str, Any]:
    """The watchers' counts, for the run's `counts`; None for what was not counted."""
    return outcomes.counts(entries)


def requested_graphs(entries: Entries) -> RequestedGraphs:
    graphs = [entry for entry in entries if entry["kind"] == "graph_asked"]
    return RequestedGraphs(len(graphs), any(entry["simulated"] for entry in graphs))


def _lifetimes(entries: Entries) -> Iterator[Event]:
    """One event for each tensor that was held after its memory was reused."""
    for entry in entries:
        if entry["kind"] not in _LIFETIMES:
            continue
        stacks = {
            name: _frames(entry[name]) for name in ("overwriter", "reader", "stored")
        }
        yield Event(
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


def _frames(plain: Sequence[Sequence[Any]]) -> tuple[Frame, ...]:
    return tuple(Frame(file, line, function) for file, line, function in plain)
