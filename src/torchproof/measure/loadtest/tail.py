"""Explains slow requests by the stalls that delayed them.

A request is slow if its latency is above the median by more than three times the spread
below the median, a quarter of the median, and half a millisecond. Its excess is what it
took longer than the median. The median is that of latencies without the stalls, because
one long stall may delay most requests.

To attribute the excess, the recorded schedule is replayed without a cause: each
request's service gets shorter by its part of the stalls, and the requests behind it
begin earlier, until a worker would have been idle anyway. What a replay saves a request
is the excess by that cause; so the backlog after a stall belongs to the stall. Causes
are taken out one after the other, in the order of their first stall, so that nothing
counts twice. At last the schedule is replayed with usual service times: the excess that
is left there comes from plain load. The rest is unexplained.

A request for text is compared with what its length usually takes (`text_tail`). The
prefills of other requests are stalls of it, as far as it had more of them for each of
its tokens than usual. Load is then the wait for a free slot, a cause of its own.
"""

from __future__ import annotations

import heapq
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torchproof.measure.loadtest import text_tail
from torchproof.measure.loadtest.tail_causes import (
    PREFILL,
    SLOT_WAIT,
    CauseKey,
    key_of,
    remedy_of,
    text_of,
)
from torchproof.records import LoadResult, Requests, Stall, Tail, TailCause

_SPREADS = 3.0
_SHARE_OF_MEDIAN = 0.25
_LEAST_S = 0.0005
_SPREAD_OF_MAD = 1.4826  # a standard deviation, of a normal distribution
_VICTIM_SHARE = 0.05  # of a request's excess
_LEAST_PART_S = 1e-6
# Which stall a moment belongs to: the request's own, what holds the GIL, then prefills
# of other requests. Others only slow a request down, so they explain no more than what
# it took too long.
_OWN, _COLLECTING, _HOLDING, _PREFILLING, _ELSEWHERE, _POLLED = range(6)
_FEW = 3  # services from which the usual time is known


class Tails(NamedTuple):
    """The slow requests until the cold phase ended, and those afterwards."""

    cold: Tail | None
    warm: Tail | None


def explained(
    result: LoadResult,
    stalls: Sequence[Stall],
    missing: Mapping[str, str],
    slots: int = 0,
) -> LoadResult:
    """The result with its stalls, and its slow requests explained by them.

    `slots` are those of a text model.
    """
    cold = result.cold
    first_warm = 0 if cold is None else cold.requests
    every = (*stalls, *text_tail.prefills(result.requests))
    tails = explain(result.requests, every, first_warm, missing, slots=slots)
    causes = [cause for tail in tails if tail for cause in tail.causes]
    # Every request has a prefill: those that delayed no slow request are left out.
    used = {index for cause in causes for index in cause.stalls}
    kept = [n for n in range(len(every)) if n < len(stalls) or n in used]
    numbers = {old: new for new, old in enumerate(kept)}
    warm, cold_tail = (_renumbered(tail, numbers) for tail in (tails.warm, tails.cold))
    return replace(
        result,
        stalls=tuple(every[index] for index in kept),
        tail=warm,
        cold=None if cold is None else replace(cold, tail=cold_tail),
    )


def _renumbered(tail: Tail | None, numbers: Mapping[int, int]) -> Tail | None:
    """The tail with other indices of stalls."""
    if tail is None:
        return None
    causes = [
        replace(cause, stalls=tuple(numbers[index] for index in cause.stalls))
        for cause in tail.causes
    ]
    return replace(tail, causes=tuple(causes))


def explain(
    requests: Requests,
    stalls: Sequence[Stall],
    first_warm: int | None,
    missing: Mapping[str, str] | None = None,
    *,
    slots: int = 0,
) -> Tails:
    """Explains the slow requests; `first_warm` is the first one after the cold phase.

    None: the cold phase did not end. `missing` are kinds of stalls that nothing saw. Of
    a text model, the stalls include `text_tail.prefills`.
    """
    latency = {
        number: end - arrival
        for number, (arrival, end) in enumerate(
            zip(requests.arrival_s, requests.end_s, strict=True)
        )
        if end is not None and requests.begin_s[number] is not None
    }
    boundary = len(requests.arrival_s) if first_warm is None else first_warm
    cold = [number for number in latency if number < boundary]
    warm = [number for number in latency if number >= boundary]
    # An error may come much faster than an answer, so it says nothing about the median.
    answered = latency.keys() - {*requests.failed}
    if not answered:
        return Tails(None, None)
    analysis = _Analysis(requests, stalls, slots)
    analysis.set_median(answered.intersection(warm) or answered)
    tails = [
        analysis.tail(phase, missing or {}) if phase else None for phase in (cold, warm)
    ]
    return Tails(*tails)


def slow_above(latencies: Sequence[float]) -> float:
    """The latency in seconds above which a request is slow.

    The spread is that of the latencies below the median: those above it are delayed.
    """
    median = statistics.median(latencies)
    deviation = statistics.median(median - each for each in latencies if each <= median)
    margin = max(
        _SPREADS * _SPREAD_OF_MAD * deviation, _SHARE_OF_MEDIAN * median, _LEAST_S
    )
    return median + margin


# -- what is served together -----------------------------------------------------------


@dataclass
class _Unit:
    """The requests of one service: one, or a batch.

    `ready` is when it could have begun, `occupied` how long it took from then on.
    """

    members: tuple[int, ...]
    arrival: float  # of the last member
    begin: float
    end: float
    kind: Hashable  # units of one kind usually take the same time for their size
    failed: bool = False
    tokens: int | None = None  # of a text; one thread generates several texts at once
    ready: float = 0.0
    occupied: float = 0.0
    usual: float = 0.0
    # By cause: seconds in which it stopped, seconds beside it, and its stalls.
    parts: dict[int, float] = field(default_factory=dict)
    beside: dict[int, float] = field(default_factory=dict)
    stalls: dict[int, list[OutermostStall]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return max(1, self.tokens or 1)


class _Service(NamedTuple):
    """When and where a unit was served; `alone` is the number of a lone request."""

    begin: float
    end: float
    worker: int | None
    alone: int | None


def _units(requests: Requests) -> list[_Unit]:
    """The services in the order in which they began."""
    failed = {*requests.failed}
    services: dict[_Service, list[int]] = defaultdict(list)
    times = zip(requests.begin_s, requests.end_s, strict=True)
    for number, (begin, end) in enumerate(times):
        if begin is not None and end is not None:
            alone = number if (_at(requests.batch, number) or 1) == 1 else None
            worker = _at(requests.worker, number)
            services[_Service(begin, end, worker, alone)].append(number)
    units = [
        _Unit(
            members=tuple(members),
            arrival=max(requests.arrival_s[number] for number in members),
            begin=service.begin,
            end=service.end,
            kind=tuple(sorted(requests.call[number] for number in members)),
            failed=members[0] in failed,
            tokens=_at(requests.output_tokens, members[0]),
        )
        for service, members in services.items()
    ]
    return sorted(units, key=lambda unit: (unit.begin, unit.arrival))


def _at(values: Sequence[int | None], number: int) -> int | None:
    return values[number] if number < len(values) else None


def _servers(units: Iterable[_Unit]) -> int:
    """How many services ran at once."""
    changes = [(unit.begin, 1) for unit in units] + [(unit.end, -1) for unit in units]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return max(1, most)


def _replayed(
    units: Sequence[_Unit], occupied: Sequence[float], servers: int
) -> list[float]:
    """When each unit ends if it takes this long; the first idle server takes it."""
    free = [float("-inf")] * servers
    ends = []
    for unit, seconds in zip(units, occupied, strict=True):
        end = max(unit.arrival, free[0]) + seconds
        heapq.heapreplace(free, end)
        ends.append(end)
    return ends


def _set_occupied(units: Sequence[_Unit], servers: int) -> None:
    """Notes when each unit could have begun, given when the ones before it ended."""
    free = [float("-inf")] * servers
    for unit in units:
        unit.ready = min(max(unit.arrival, free[0]), unit.begin)
        unit.occupied = unit.end - max(unit.arrival, free[0])
        heapq.heapreplace(free, unit.end)


# -- stalls ----------------------------------------------------------------------------


@dataclass
class OutermostStall:
    """A stall that no other contains, with what happened inside it."""

    index: int
    stall: Stall
    inner: list[Stall] = field(default_factory=list)


def outermost(stalls: Sequence[Stall]) -> list[OutermostStall]:
    """Stalls that no other stall of the same thread contains, in order of begin.

    A thread holds the GIL while it compiles or collects: that is no other stall.
    """
    found: list[OutermostStall] = []
    last: dict[str | None, OutermostStall] = {}
    order = sorted(
        range(len(stalls)), key=lambda i: (stalls[i].begin_s, -stalls[i].end_s)
    )
    for index in order:
        stall = stalls[index]
        around = last.get(stall.thread)
        if stall.kind == "gil":
            if not _explained(stall, found):
                found.append(OutermostStall(index, stall))
        elif around is not None and stall.end_s <= around.stall.end_s:
            around.inner.append(stall)
        else:
            last[stall.thread] = OutermostStall(index, stall)
            found.append(last[stall.thread])
    return found


def _explained(held: Stall, before: Sequence[OutermostStall]) -> bool:
    """Whether the holder of the GIL is unknown, or has another stall at that time."""
    if held.thread is None:
        return True
    return any(
        held.thread in {each.stall.thread, each.stall.data.get("helper")}
        and each.stall.begin_s < held.end_s
        and each.stall.end_s > held.begin_s
        for each in before
    )


def _rank(stall: Stall, unit: _Unit) -> int | None:
    """How a stall delays a unit; None if it does not."""
    if stall.kind == "allocator" and stall.request is None:
        return _POLLED
    is_text = unit.tokens is not None  # the thread that stops also generates this text
    if stall.kind == "cpu" and stall.request not in unit.members and not is_text:
        return None
    if stall.request in unit.members:
        if stall.kind in {"gil", "prefill"}:
            return None  # its own work
        return _POLLED if stall.kind == "allocator" else _OWN
    if stall.kind == "prefill":
        return _PREFILLING
    if is_text and not stall.data.get("background"):
        return _HOLDING
    ranks = {"gc": _COLLECTING, "gil": _HOLDING}
    return ranks.get(stall.kind, _ELSEWHERE)


def _overlaps(
    units: Sequence[_Unit], stalls: Sequence[OutermostStall]
) -> Iterator[tuple[_Unit, list[OutermostStall]]]:
    """Each unit with the stalls during it."""
    waiting = iter(stalls)
    following = next(waiting, None)
    active: list[OutermostStall] = []
    for unit in sorted(units, key=lambda unit: unit.ready):
        active = [each for each in active if each.stall.end_s > unit.ready]
        while following is not None and following.stall.begin_s < unit.end:
            if following.stall.end_s > unit.ready:
                active.append(following)
            following = next(waiting, None)
        yield unit, [each for each in active if each.stall.begin_s < unit.end]


def _shared_out(
    unit: _Unit, during: Iterable[OutermostStall]
) -> Iterator[tuple[OutermostStall, float, int]]:
    """The seconds of a unit that each stall covers; each moment counts once."""
    ranked = [
        (rank, each) for each in during if (rank := _rank(each.stall, unit)) is not None
    ]
    covered: list[tuple[float, float]] = []
    for rank, each in sorted(ranked, key=lambda pair: pair[0]):
        begin = max(each.stall.begin_s, unit.begin if rank == _OWN else unit.ready)
        pieces = _uncovered(begin, min(_end_for(unit, each.stall), unit.end), covered)
        seconds = sum(high - low for low, high in pieces)
        if seconds > 0:
            covered += pieces
            yield each, seconds, rank


def _end_for(unit: _Unit, stall: Stall) -> float:
    """When a stall ends for a unit.

    One that waits for its own prefill lets a step pass after each prefill before it.
    """
    if stall.kind == "prefill" and stall.end_s < unit.begin:
        return min(float(stall.data[text_tail.NEXT]), unit.begin)
    return stall.end_s


def _uncovered(
    begin: float, end: float, covered: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """The parts of an interval that no other covers."""
    parts = [(begin, end)] if end > begin else []
    for low, high in covered:
        parts = [
            piece
            for first, last in parts
            for piece in ((first, min(last, low)), (max(first, high), last))
            if piece[1] > piece[0]
        ]
    return parts


def _set_usual(units: Sequence[_Unit]) -> None:
    """The median of what units of one kind take when nothing stops them.

    Units that failed, or were beside a compilation in another thread, count only if
    there are few others.
    """
    alone: dict[Hashable, list[float]] = defaultdict(list)
    every: dict[Hashable, list[float]] = defaultdict(list)
    for unit in units:
        seconds = max(0.0, unit.occupied - sum(unit.parts.values())) / unit.size
        every[unit.kind].append(seconds)
        if not unit.beside and not unit.failed:
            alone[unit.kind].append(seconds)
    usual = {
        kind: statistics.median(alone[kind] if len(alone[kind]) >= _FEW else times)
        for kind, times in every.items()
    }
    for unit in units:
        unit.usual = usual[unit.kind] * unit.size


def _keep_unusual(units: Sequence[_Unit], cause: int) -> None:
    """Keeps of a cause what it took more per token than of most units."""
    usual = statistics.median(unit.parts.get(cause, 0.0) / unit.size for unit in units)
    for unit in units:
        unusual = unit.parts.pop(cause, 0.0) - usual * unit.size
        if unusual > _LEAST_PART_S:
            unit.parts[cause] = unusual
        else:
            unit.stalls.pop(cause, None)


# -- the analysis ----------------------------------------------------------------------


class _Analysis:
    """What each cause added to the latency of each request."""

    def __init__(self, requests: Requests, stalls: Sequence[Stall], slots: int) -> None:
        self._requests = requests
        # Latencies are compared in relation to what the length of a text usually takes.
        self._scale = text_tail.usual_times(requests)
        self._median = self._limit = 0.0
        self._units = _units(requests)
        self._servers = max(slots, _servers(self._units))  # some may never be used
        _set_occupied(self._units, self._servers)
        found = outermost(stalls)
        # The causes in the order of their first stalls, but prefills last: they are
        # usual, and other stalls made them longer.
        keys = dict.fromkeys(key_of(each.stall) for each in found)
        self._causes = sorted(keys, key=lambda key: key.code == PREFILL)
        self._assign(found)
        self._waiting_for_slots = len(self._causes)
        self._causes.append(CauseKey(SLOT_WAIT, ()))
        self._set_usual()
        for unit in self._units:
            excess = unit.occupied - unit.usual
            unit.parts = _capped(unit.parts, excess)
            rest = _capped(unit.beside, excess - sum(unit.parts.values()))
            for cause, seconds in rest.items():
                unit.parts[cause] = unit.parts.get(cause, 0.0) + seconds
        # By request: the seconds that each cause added.
        self._added: dict[int, dict[int, float]] = defaultdict(dict)
        occupied, ends = self._take_out_causes()
        self._without_stalls = self._latencies(ends)
        begins = [end - taken for end, taken in zip(ends, occupied, strict=True)]
        self._queueing = self._latencies(begins)
        usual = [unit.usual for unit in self._units]
        self._at_usual_speed = self._latencies(
            _replayed(self._units, usual, self._servers)
        )

    @property
    def _is_text(self) -> bool:
        return bool(self._scale)

    def _assign(self, stalls: Sequence[OutermostStall]) -> None:
        """Gives each unit its parts of the stalls."""
        numbers = {key: number for number, key in enumerate(self._causes)}
        for unit, during in _overlaps(self._units, stalls):
            parts = list(_shared_out(unit, during))
            longest = max((s for _, s, rank in parts if rank == _PREFILLING), default=0)
            for each, seconds, rank in parts:
                cause = numbers[key_of(each.stall)]
                causes = unit.parts if rank <= _PREFILLING else unit.beside
                causes[cause] = causes.get(cause, 0.0) + seconds
                # Many short prefills beside a long one are not what delayed a request.
                if rank != _PREFILLING or seconds >= longest / 2:
                    unit.stalls.setdefault(cause, []).append(each)
        for key, number in numbers.items():
            if key.code == PREFILL:
                _keep_unusual(self._units, number)

    def _set_usual(self) -> None:
        _set_usual(self._units)
        for unit in self._units:
            unit.usual = self._scale.get(unit.members[0], unit.usual)

    def set_median(self, numbers: Iterable[int]) -> None:
        """Takes the median of these requests, and from where on one is slow.

        It is the median without the stalls: a long one may delay most requests.
        """
        latencies = [self._without_stalls[n] / self._scale_of(n) for n in numbers]
        self._median = statistics.median(latencies)
        self._limit = slow_above(latencies)

    def _scale_of(self, number: int) -> float:
        return max(self._scale.get(number, 1.0), _LEAST_PART_S)

    def _expected_s(self, number: int) -> float:
        return self._median * self._scale_of(number)

    def _is_slow(self, number: int) -> bool:
        excess = self._excess_s(number)
        latency = excess + self._expected_s(number)
        return latency > self._limit * self._scale_of(number) and excess > _LEAST_S

    def _take_out_causes(self) -> tuple[list[float], list[float]]:
        """Replays without one cause after the other.

        Returns how long each unit is occupied, and when it ends, without any cause.
        """
        units, servers = self._units, self._servers
        occupied = [unit.occupied for unit in units]
        ends = [unit.end for unit in units]
        for cause in range(len(self._causes)):
            if not any(cause in unit.parts for unit in units):
                continue
            occupied = [
                seconds - unit.parts.get(cause, 0.0)
                for unit, seconds in zip(units, occupied, strict=True)
            ]
            earlier = _replayed(units, occupied, servers)
            for unit, before, after in zip(units, ends, earlier, strict=True):
                if before - after > _LEAST_PART_S:
                    for number in unit.members:
                        self._added[number][cause] = before - after
            ends = earlier
        return occupied, ends

    def _latencies(self, ends: Sequence[float]) -> dict[int, float]:
        """By request, if the units end at these times."""
        return {
            number: end - self._requests.arrival_s[number]
            for unit, end in zip(self._units, ends, strict=True)
            for number in unit.members
        }

    def tail(self, phase: Sequence[int], missing: Mapping[str, str]) -> Tail:
        """The slow requests of one phase, with their excess explained."""
        slow = [number for number in phase if self._is_slow(number)]
        excess_s = load_s = 0.0
        by_cause: dict[int, dict[int, float]] = defaultdict(dict)
        for number in slow:
            excess = self._excess_s(number)
            parts = _capped(self._added.get(number, {}), excess)
            load = min(excess - sum(parts.values()), self._load_s(number))
            if not self._is_text:
                load_s += load
            elif load > _LEAST_PART_S:
                parts[self._waiting_for_slots] = load
            excess_s += excess
            for cause, seconds in parts.items():
                by_cause[cause][number] = seconds
        causes = [self._record(cause, by_cause[cause], excess_s) for cause in by_cause]
        explained_s = sum(sum(parts.values()) for parts in by_cause.values())
        unexplained_s = max(0.0, excess_s - explained_s - load_s)
        return Tail(
            threshold_ms=None if self._is_text else self._limit * 1e3,
            slow=tuple(slow),
            excess_ms=excess_s * 1e3,
            causes=tuple(sorted(causes, key=lambda each: -(each.excess_ms or 0))),
            load_ms=load_s * 1e3,
            load_share=load_s / excess_s if excess_s else None,
            unexplained_ms=unexplained_s * 1e3,
            unexplained_share=unexplained_s / excess_s if excess_s else None,
            missing=dict(missing),
        )

    def _load_s(self, number: int) -> float:
        """What usual load adds: of text, the wait for a free slot without stalls."""
        if self._is_text:
            return max(0.0, self._queueing[number])
        return max(0.0, self._at_usual_speed[number] - self._median)

    def _record(
        self, number: int, seconds: Mapping[int, float], excess_s: float
    ) -> TailCause:
        """The record of a cause, from the seconds it added to each slow request."""
        key = self._causes[number]
        delayed = {
            each
            for each, part in seconds.items()
            if part >= _VICTIM_SHARE * self._excess_s(each)
        }
        units = [
            unit
            for unit in self._units
            if number in unit.parts and not delayed.isdisjoint(unit.members)
        ]
        during = {e.index: e for unit in units for e in unit.stalls.get(number, ())}
        found = [during[index] for index in sorted(during)] or self._all(number)
        own = {each.stall.request for each in found}
        culprits = {
            member
            # A prefill delays other requests than its own, which others may delay.
            for unit in (self._units if key.code == PREFILL else units)
            if not own.isdisjoint(unit.members)
            for member in unit.members
        }
        victims = delayed if key.code == PREFILL else delayed - culprits
        total_s = sum(seconds.values())
        stalls = [each.stall for each in found]
        waiting = f"waited for one of {self._servers} slots"
        return TailCause(
            code=key.code,
            kind=stalls[0].kind if stalls else "slots",
            text=text_of(key, stalls) if stalls else waiting,
            remedy=remedy_of(key, stalls),
            stalls=tuple(each.index for each in found),
            culprits=tuple(sorted(culprits)),
            victims=tuple(sorted(victims)),
            excess_ms=total_s * 1e3,
            share=total_s / excess_s,
            other=_inner(found),
        )

    def _all(self, number: int) -> list[OutermostStall]:
        """All stalls of a cause that delayed a service, slow or not."""
        during = [e for unit in self._units for e in unit.stalls.get(number, ())]
        return list({each.index: each for each in during}.values())

    def _excess_s(self, number: int) -> float:
        end = self._requests.end_s[number]
        assert end is not None
        return end - self._requests.arrival_s[number] - self._expected_s(number)


def _inner(stalls: Iterable[OutermostStall]) -> dict[str, Any]:
    """The milliseconds that stalls contain of other kinds, which count only once."""
    parts: dict[str, float] = defaultdict(float)
    for each in stalls:
        for stall in each.inner:
            parts[stall.kind] += (stall.end_s - stall.begin_s) * 1e3
    return {"parts_ms": dict(parts)} if parts else {}


def _capped(parts: Mapping[int, float], most: float) -> dict[int, float]:
    """The parts, scaled down if they are more than this together."""
    total = sum(parts.values())
    scale = min(1.0, max(0.0, most) / total) if total > 0 else 0.0
    scaled = {key: seconds * scale for key, seconds in parts.items()}
    return {key: each for key, each in scaled.items() if each > _LEAST_PART_S}
