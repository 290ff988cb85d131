"""Finds who waited for whom in collectives, and what the late rank did meanwhile.

A collective ends when its last rank arrives. The others wait from their own arrival
until then. The cause of a wait is what fills most of that time on the late rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torchproof.records import (
    CollectiveTimeout,
    Rank,
    RankDifference,
    RankEvent,
    RankWait,
    collectives_of,
    shown_briefly,
)

LEAST_WAIT_S = 0.05  # shorter waits are those of any two processes
MOST_WAITS = 200  # that a run keeps
_Interval = tuple[float, float]


@dataclass(frozen=True)
class _Collective:
    """One collective on all of its ranks."""

    arrivals: Mapping[int, RankEvent]
    missing: tuple[Rank, ...]  # members that never came

    @property
    def first(self) -> RankEvent:
        return min(self.arrivals.values(), key=lambda event: event.start_s)


def find_waits(ranks: Sequence[Rank]) -> tuple[RankWait, ...]:
    """The waits that are worth a line, the longest first."""
    by_rank = {rank.rank: rank for rank in ranks}
    waits = (_wait(each, by_rank) for each in _collectives(ranks))
    return tuple(sorted(filter(None, waits), key=lambda wait: -wait.seconds))


def _collectives(ranks: Sequence[Rank]) -> Iterator[_Collective]:
    """The collectives of the run, in the order in which they are first seen."""
    found, newest = collectives_of(ranks)
    for (group, nth), arrivals in found.items():
        name, members = group
        # Not known: all ranks are in the default group, in others those that were seen.
        everybody = name in (None, "default_pg") and not members
        expected = [
            rank
            for rank in ranks
            if rank.rank in members or everybody or (rank.rank, group) in newest
        ]
        # One that is in a later collective of the group was in this one, too.
        missing = (r for r in expected if newest.get((r.rank, group), -1) < nth)
        yield _Collective(arrivals, tuple(missing))


def _wait(collective: _Collective, ranks: Mapping[int, Rank]) -> RankWait | None:
    """The longest wait in a collective; None if it is too short to matter."""
    if collective.missing:
        late = collective.missing[0]
        ended_s = max(
            end_of(event, ranks[r]) for r, event in collective.arrivals.items()
        )
    else:
        number = max(collective.arrivals, key=lambda r: collective.arrivals[r].start_s)
        late = ranks[number]
        ended_s = collective.arrivals[number].start_s
    waited = {
        rank: min(ended_s, end_of(event, ranks[rank])) - event.start_s
        for rank, event in collective.arrivals.items()
        if rank != late.rank
    }
    waiting = tuple(r for r, seconds in waited.items() if seconds >= LEAST_WAIT_S)
    if not waiting:
        return None
    longest = max(waiting, key=lambda rank: waited[rank])
    event = collective.arrivals[longest]
    wait = RankWait(
        collective=event.function,
        late=late.rank,
        waiting=waiting,
        start_s=event.start_s,
        seconds=waited[longest],
        nth=event.nth,
        group=event.group,
        step=event.step,
        ended=not collective.missing,
        file=event.file,
        line=event.line,
    )
    return _with_cause(wait, late)


# -- causes ----------------------------------------------------------------------------


def _with_cause(wait: RankWait, late: Rank) -> RankWait:
    """The wait with what fills most of it on the rank that came late."""
    begin, end = interval = wait.start_s, wait.start_s + wait.seconds
    kinds: tuple[Literal["compile", "gc"], ...] = ("compile", "gc")
    for kind in kinds:
        events = [e for e in late.events if e.kind == kind]
        overlaps = [(_overlap(e, late, interval), e) for e in events]
        total = _union(
            (max(e.start_s, begin), min(end_of(e, late), end))
            for seconds, e in overlaps
            if seconds > 0
        )
        if total >= wait.seconds / 2:
            _, longest = max(overlaps, key=lambda pair: pair[0])
            return replace(
                wait,
                cause=kind,
                text=describe(longest),
                cause_s=total,
                compile_id=longest.compile_id,
            )
    if late.outcome in ("killed", "failed") and (late.last_seen_s or 0.0) < end:
        return replace(wait, cause="ended", text=f"rank {late.rank} had ended")
    if late.first_seen_s is None:
        return wait
    return replace(wait, cause="slow", text="neither compiling nor collecting garbage")


def _overlap(event: RankEvent, rank: Rank, interval: _Interval) -> float:
    begin, end = interval
    return max(0.0, min(end_of(event, rank), end) - max(event.start_s, begin))


def _union(intervals: Iterable[_Interval]) -> float:
    """The length of what intervals cover: compiles may lie inside each other."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def end_of(event: RankEvent, rank: Rank) -> float:
    """When an event ended; the end of the stream for one that did not."""
    if event.seconds is not None:
        return event.start_s + event.seconds
    return max(rank.last_seen_s or event.start_s, event.start_s)


def describe(event: RankEvent) -> str:
    """`compiling Net.forward (model.py:12)`, `in all_reduce`."""
    if event.kind == "compile":
        again = "compiling" if event.reason is None else "recompiling"
        return f"{again} {event.function}{_place(event)}"
    if event.kind == "gc":
        which = f" ({event.reason})" if event.reason else ""
        return f"collecting garbage{which}"
    if event.kind == "collective":
        return f"in {event.function}{_place(event)}"
    return "running"


def _place(event: RankEvent) -> str:
    return f" ({shown_briefly(event.file)}:{event.line})" if event.file else ""


# -- what differences cost, and timeouts -----------------------------------------------


def waited_for(
    difference: RankDifference, waits: Iterable[RankWait]
) -> tuple[float | None, tuple[int, ...]]:
    """How long others waited for the compiles of a difference, and which ranks.

    Several collectives may wait for one compile at the same time. If the others
    compiled as well, a wait is not due to the difference, unless a cache helped them.
    """
    if difference.kind not in ("recompile", "function", "cache"):
        return None, ()
    compiles = set(zip(difference.ranks, difference.compile_ids, strict=True))
    own = [
        wait
        for wait in waits
        if wait.compile_id is not None and (wait.late, wait.compile_id) in compiles
    ]
    if not own:
        return None, ()
    return covered_s(own), tuple(
        sorted({rank for wait in own for rank in wait.waiting})
    )


def covered_s(waits: Iterable[RankWait]) -> float:
    """The time in which at least one of these waits lasted."""
    return _union((wait.start_s, wait.start_s + wait.seconds) for wait in waits)


def find_timeout(ranks: Sequence[Rank]) -> CollectiveTimeout | None:
    """The first collective that failed because members had not come by then."""
    by_rank = {rank.rank: rank for rank in ranks}
    failed = [
        timeout
        for collective in _collectives(ranks)
        if (timeout := _timeout(collective, by_rank)) is not None
    ]
    # The last half second of a rank that was killed is not recorded: others may have
    # ended collectives with it then, and failed in the last one only.
    unseen = [
        t for t in failed if any(by_rank[r].outcome == "killed" for r in t.missing)
    ]
    if unseen:
        return max(unseen, key=lambda timeout: timeout.start_s or 0.0)
    return min(failed, key=lambda timeout: timeout.start_s or 0.0, default=None)


def _timeout(
    collective: _Collective, ranks: Mapping[int, Rank]
) -> CollectiveTimeout | None:
    """A collective in which a rank that did not finish waited for another."""
    given_up = {
        rank: end_of(event, ranks[rank])
        for rank, event in collective.arrivals.items()
        if ranks[rank].outcome != "finished"
    }
    if not given_up:
        return None
    first = min(given_up, key=lambda rank: given_up[rank])
    at_s, event = given_up[first], collective.arrivals[first]
    late = [
        ranks[rank]
        for rank, arrival in collective.arrivals.items()
        if arrival.start_s > at_s
    ]
    missing = sorted((*collective.missing, *late), key=lambda rank: rank.rank)
    if not missing or at_s - event.start_s < LEAST_WAIT_S:
        return None
    return CollectiveTimeout(
        collective=event.function,
        ranks=tuple(r for r in collective.arrivals if ranks[r] not in late),
        missing=tuple(rank.rank for rank in missing),
        activities=tuple(activity_at(rank, at_s) for rank in missing),
        compile_ids=tuple(_compiling_at(rank, at_s) for rank in missing),
        nth=event.nth,
        group=event.group,
        step=event.step,
        start_s=event.start_s,
        seconds=at_s - event.start_s,
        error=ranks[first].error,
        file=event.file,
        line=event.line,
    )


def activity_at(rank: Rank, moment_s: float) -> str:
    """What a rank did at a moment, or last, from its events."""
    seen_s = _last_seen(rank, moment_s)
    event = _going_on(rank, seen_s)
    if event is None:
        return "ended" if seen_s < moment_s else rank.activity or "running"
    since = f"for {seen_s - event.start_s:.1f} s"
    if seen_s < moment_s:
        since += f" when it was last seen, {moment_s - seen_s:.1f} s before"
    return f"{describe(event)} {since}"


def _compiling_at(rank: Rank, moment_s: float) -> str | None:
    event = _going_on(rank, _last_seen(rank, moment_s))
    return event.compile_id if event and event.kind == "compile" else None


def _last_seen(rank: Rank, moment_s: float) -> float:
    return moment_s if rank.last_seen_s is None else min(moment_s, rank.last_seen_s)


def _going_on(rank: Rank, moment_s: float) -> RankEvent | None:
    """The innermost of the events that a rank was in."""
    events = [
        event
        for event in rank.events
        if event.kind in ("compile", "gc", "collective")
        and event.start_s <= moment_s <= end_of(event, rank)
    ]
    return max(events, key=lambda event: event.start_s, default=None)
