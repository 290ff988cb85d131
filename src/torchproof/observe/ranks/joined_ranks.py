"""Joins the streams of all ranks: one clock, one record per rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchproof.observe.gathering import gather
from torchproof.observe.ranks.rank_events import RUNNING, RankReader
from torchproof.observe.ranks.rank_streams import read_stream, stream_path
from torchproof.process import Entry, Followed
from torchproof.records import (
    Observation,
    Rank,
    RankEvent,
    RankRun,
    collectives_of,
    shapes,
)
from torchproof.targets import Target


@dataclass(frozen=True)
class JoinedRanks:
    """All ranks of a launch, and what `check` observed on each of them."""

    run: RankRun
    observations: Mapping[int, Observation] = field(default_factory=dict)
    ending: str = "finished"

    @property
    def observation(self) -> Observation:
        """That of the first rank that was observed, and why a rank failed."""
        if not self.observations:
            error = "no rank was observed" if self.ending == "finished" else None
            nothing: shapes.Environment = {"torch": None, "device": None}
            return Observation((), nothing, ending=self.ending, error=error)
        first = next(iter(self.observations.values()))
        return replace(first, ending=self.ending, error=self._error())

    def _error(self) -> str | None:
        """One line on the rank that failed first; the launcher then ends the others."""
        bad = [rank for rank in self.run.ranks if rank.outcome in ("failed", "killed")]
        own = [rank for rank in bad if rank.exit_code is not None] or bad
        if not own or self.ending != "finished":
            return None
        first = min(own, key=lambda rank: rank.last_seen_s or 0.0)
        return f"rank {first.rank}: {first.error or first.outcome}"


def join(
    folder: Path, world_size: int, target: Target, *, ending: str = "finished"
) -> JoinedRanks:
    """Reads the streams in a folder; `ending` says how the launch ended."""
    streams = {
        rank: entries
        for rank in range(world_size)
        if (entries := read_stream(stream_path(folder, rank)))
    }
    origin = min((stream[0]["wall"] for stream in streams.values()), default=0.0)
    ranks: list[Rank] = []
    observations: dict[int, Observation] = {}
    for rank, entries in streams.items():
        observations[rank] = _observation(entries, target, ending)
        reader = RankReader(entries, origin)
        ranks.append(reader.record(observations[rank], ending))
    run = RankRun(
        world_size,
        ranks=tuple(_with_collective_times(ranks)),
        notes=tuple(_notes(streams, world_size)),
    )
    return JoinedRanks(run, observations, ending)


def _observation(entries: list[Entry], target: Target, ending: str) -> Observation:
    end = next((e for e in reversed(entries) if e["kind"] == "rank_end"), None)
    if end is not None:
        ending = "interrupted" if end["ending"] == "stopped" else end["ending"]
    timeless = [{k: v for k, v in entry.items() if k != "at"} for entry in entries]
    return gather(Followed(timeless, ending, end["code"] if end else None), target)


def _notes(streams: Mapping[int, list[Entry]], world_size: int) -> Iterable[str]:
    for rank in range(world_size):
        if rank not in streams:
            yield f"rank {rank} left no events: it ended before it was observed"
            continue
        lost = sum(e["lost"] for e in streams[rank] if e["kind"] == "collectives")
        if lost:
            yield f"rank {rank}: {lost} collectives were not recorded"
        for entry in streams[rank]:
            if entry["kind"] == "missing_hook":
                yield f"rank {rank}: {entry['message']}"


def _with_collective_times(ranks: Iterable[Rank]) -> Iterable[Rank]:
    """Sets the seconds of each collective to the arrival of its last rank.

    A collective that a rank never reached has no end. Where torch recorded the end
    itself, that is kept.
    """
    ranks = list(ranks)
    arrivals, newest = collectives_of(ranks)
    for rank in ranks:
        events = [
            _timed(event, arrivals, newest) if event.kind == "collective" else event
            for event in rank.events
        ]
        yield replace(rank, events=tuple(events), activity=_activity(rank, events))


def _activity(rank: Rank, events: Iterable[RankEvent]) -> str | None:
    """What the rank did last: in its last collective, if that has no end."""
    collectives = [event for event in events if event.kind == "collective"]
    if rank.activity != RUNNING or not collectives:
        return rank.activity
    last = collectives[-1]
    return f"in {last.function}" if last.seconds is None else rank.activity


def _timed(
    event: RankEvent,
    arrivals: Mapping[Any, Mapping[int, RankEvent]],
    newest: Mapping[Any, int],
) -> RankEvent:
    if event.seconds or event.nth is None:
        return event
    group = event.group, event.members
    came = arrivals[group, event.nth].values()
    # A rank that is in a later collective of the group was in this one, too.
    last = (newest.get((rank, group), -1) for rank in event.members)
    if any(number < (event.nth or 0) for number in last):
        return replace(event, seconds=None)
    return replace(event, seconds=max(e.start_s for e in came) - event.start_s)
