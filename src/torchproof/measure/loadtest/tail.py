"""Explains slow requests by the stalls that delayed them.

A request is slow if its latency is above the median by more than three times the spread
below the median, a quarter of the median, and half a millisecond. Its excess is what it
took longer than the median. The median is that of latencies without the stalls, because
one long stall may delay most requests. A request for text is compared with what its
length usually takes.

The interval of each service is joined with those of the stalls, which explain what it
takes longer than usual. That delays the requests behind it on the same worker, as far
as they waited: so the backlog after a stall belongs to the stall. What is left of the
excess at usual service times is load. The rest is unexplained.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from torchproof.measure.loadtest.tail_causes import CauseKey, describe, key_of
from torchproof.records import Requests, Stall, Tail, TailCause

_SPREADS = 3.0
_SHARE_OF_MEDIAN = 0.25
_LEAST_S = 0.0005
_SPREAD_OF_MAD = 1.4826  # a standard deviation, of a normal distribution
_VICTIM_SHARE = 0.05  # of a request's excess
_LEAST_PART_S = 1e-6
_FEW = 3  # services from which the usual time is known
# Which of several stalls at a time explains a service first. Those in its own thread
# and collections stop it. Others slow it down, or are only known to be somewhere in it.
_OWN, _STOPS, _SLOWS, _SOMEWHERE = range(4)
_UNPLACED = ("allocator", "cpu")

Key = TypeVar("Key")
# Seconds by cause; None stands for services that took long without a stall.
Delays = dict[CauseKey | None, float]


class Tails(NamedTuple):
    """The slow requests until the cold phase ended, and those afterwards."""

    cold: Tail | None
    warm: Tail | None


def explain(
    requests: Requests,
    stalls: Sequence[Stall],
    first_warm: int | None,
    missing: Mapping[str, str] | None = None,
) -> Tails:
    """Explains the slow requests; `first_warm` is the first one after the cold phase.

    None: the cold phase did not end. `missing` are kinds of stalls that nothing saw.
    """
    served = [n for n, end in enumerate(requests.end_s) if end is not None]
    boundary = len(requests.arrival_s) if first_warm is None else first_warm
    phases = [n for n in served if n < boundary], [n for n in served if n >= boundary]
    # An error may come much faster than an answer, so it says nothing about the median.
    answered = {*served} - {*requests.failed}
    if not answered:
        return Tails(None, None)
    analysis = _Analysis(requests, stalls, answered.intersection(phases[1]) or answered)
    return Tails(
        *(analysis.tail(phase, missing or {}) if phase else None for phase in phases)
    )


def slow_above(latencies: Sequence[float]) -> float:
    """The latency in seconds above which a request is slow.

    The spread is that of the latencies below the median: those above it are delayed.
    """
    median = statistics.median(latencies)
    deviation = statistics.median(median - each for each in latencies if each <= median)
    spread = _SPREADS * _SPREAD_OF_MAD * deviation
    return median + max(spread, _SHARE_OF_MEDIAN * median, _LEAST_S)


# -- services, joined with stalls ------------------------------------------------------


class _Overlap(NamedTuple):
    """The seconds of a service that a stall covers; sorted, the most certain first."""

    priority: int
    number: int  # of the stall
    cause: CauseKey
    seconds: float

    @property
    def stops(self) -> bool:
        """Whether the service stood still; if not, it explains only the excess."""
        return self.priority < _SLOWS


@dataclass
class _Service:
    """One request, or a batch; `ready` is when its worker could have begun.

    `delays` are by how much each cause delayed its end, in it or before it.
    """

    members: tuple[int, ...]
    worker: int | None
    arrival: float  # of the last member
    begin: float
    end: float
    kind: Hashable  # services of one kind usually take the same time
    further: int = 0  # tokens after the first, of text
    before: _Service | None = None  # on the same worker
    ready: float = 0.0
    overlaps: list[_Overlap] = field(default_factory=list)
    delays: Delays = field(default_factory=dict)

    @property
    def moved(self) -> float:
        """The seconds in which nothing stopped it."""
        stopped = sum(each.seconds for each in self.overlaps if each.stops)
        return max(0.0, self.end - self.ready - stopped)

    @property
    def causes(self) -> dict[CauseKey, float]:
        return {cause: seconds for cause, seconds in self.delays.items() if cause}

    def priority(self, stall: Stall) -> int | None:
        """Which stall counts first; None if it does not delay this service."""
        is_own = stall.request is not None and stall.request in self.members
        if stall.kind in _UNPLACED:
            return _SOMEWHERE if is_own or stall.kind == "allocator" else None
        if is_own:
            return _OWN
        return _STOPS if stall.kind == "gc" else _SLOWS

    def join(self, during: Sequence[tuple[int, Stall]]) -> None:
        """Adds the overlap with each stall."""
        for number, stall in during:
            priority = self.priority(stall)
            first = self.begin if priority == _OWN else self.ready
            seconds = min(stall.end_s, self.end) - max(stall.begin_s, first)
            if priority is not None and seconds > 0:
                overlap = _Overlap(priority, number, key_of(stall), seconds)
                self.overlaps.append(overlap)
        self.overlaps.sort(key=lambda overlap: overlap.priority)

    def set_delays(self, usual: float) -> None:
        """Its own excess, and what it waited for the service before it."""
        waited = self.ready - self.arrival
        delays: Delays = defaultdict(float)
        if self.before is not None and waited > 0:
            delays |= _capped(self.before.delays, waited)
        excess = max(0.0, self.end - self.ready - usual)
        for overlap in self.overlaps:
            seconds = min(overlap.seconds, excess)
            delays[overlap.cause] += seconds
            excess -= seconds
        delays[None] += excess
        self.delays = delays


def _services(requests: Requests) -> list[_Service]:
    """In the order in which they began; requests of a batch have the same times."""
    count = len(requests.arrival_s)
    workers, sizes = requests.worker or (None,) * count, requests.batch or (1,) * count
    batches: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    rows = zip(requests.begin_s, requests.end_s, workers, sizes, strict=True)
    for number, (begin, end, worker, size) in enumerate(rows):
        if end is not None:
            alone = number if (size or 1) == 1 else None
            batches[begin, end, worker, alone].append(number)
    tokens = requests.output_tokens
    services = [
        _Service(
            tuple(members),
            worker,
            arrival=max(requests.arrival_s[number] for number in members),
            begin=begin,
            end=end,
            kind=tuple(sorted(requests.call[number] for number in members)),
            further=max(0, (tokens[members[0]] or 1) - 1) if tokens else 0,
        )
        for (begin, end, worker, _), members in batches.items()
    ]
    services.sort(key=lambda service: (service.begin, service.arrival))
    last: dict[int | None, _Service] = {}
    for service in services:
        service.before = last.get(service.worker)
        free = service.before.end if service.before else service.arrival
        service.ready = min(max(service.arrival, free), service.begin)
        last[service.worker] = service
    return services


def _outermost(stalls: Sequence[Stall]) -> list[tuple[int, Stall]]:
    """Stalls that no other stall of their thread contains, in order of begin."""
    found: list[tuple[int, Stall]] = []
    ends: dict[str | None, float] = {}
    for number, stall in sorted(
        enumerate(stalls), key=lambda each: (each[1].begin_s, -each[1].end_s)
    ):
        if stall.kind in _UNPLACED:
            found.append((number, stall))
        elif stall.end_s > ends.get(stall.thread, -math.inf):
            ends[stall.thread] = stall.end_s
            found.append((number, stall))
    return found


def _join(services: Sequence[_Service], stalls: Sequence[Stall]) -> None:
    """Gives each service the stalls during it; both are in order of time."""
    waiting = _outermost(stalls)[::-1]
    active: list[tuple[int, Stall]] = []
    for service in sorted(services, key=lambda service: service.ready):
        while waiting and waiting[-1][1].begin_s < service.end:
            active.append(waiting.pop())
        active = [each for each in active if each[1].end_s > service.ready]
        service.join(active)


def _capped(parts: Mapping[Key, float], most: float) -> dict[Key, float]:
    """The parts, scaled down if they are more than this together."""
    total = sum(parts.values())
    scale = min(1.0, max(0.0, most) / total) if total > 0 else 0.0
    scaled = {key: seconds * scale for key, seconds in parts.items()}
    return {key: each for key, each in scaled.items() if each > _LEAST_PART_S}


def usual_times(services: Sequence[_Service], requests: Requests) -> dict[int, float]:
    """By the first member: what its kind takes, and a time per further token of text.

    Both are medians. Services that failed, or ran beside a compilation in another
    thread, count only if there are few others.
    """
    step_s = 0.0
    if requests.first_token_s:
        first = {s.members[0]: requests.first_token_s[s.members[0]] for s in services}
        each = [(s.end - (first[s.members[0]] or s.end), s.further) for s in services]
        step_s = statistics.median([span / n for span, n in each if n] or [0.0])
    alone: dict[Hashable, list[float]] = defaultdict(list)
    every: dict[Hashable, list[float]] = defaultdict(list)
    for service in services:
        begins_s = service.moved - step_s * service.further
        every[service.kind].append(begins_s)
        is_slowed = not all(overlap.stops for overlap in service.overlaps)
        if not is_slowed and {*service.members}.isdisjoint(requests.failed):
            alone[service.kind].append(begins_s)
    usual = {
        kind: statistics.median(alone[kind] if len(alone[kind]) >= _FEW else times)
        for kind, times in every.items()
    }
    return {s.members[0]: usual[s.kind] + step_s * s.further for s in services}


# -- the analysis ----------------------------------------------------------------------


class _Analysis:
    """What each cause added to the latency of each request.

    The median, and from where on a request is slow, are those of the `usual` requests.
    """

    def __init__(
        self, requests: Requests, stalls: Sequence[Stall], usual: set[int]
    ) -> None:
        self._stalls = stalls
        self._services = _services(requests)
        _join(self._services, stalls)
        times = usual_times(self._services, requests)
        for service in self._services:
            service.set_delays(times[service.members[0]])
        self._by_request = {n: each for each in self._services for n in each.members}
        latency = {
            n: service.end - requests.arrival_s[n]
            for n, service in self._by_request.items()
        }
        # Of text, latencies count in relation to what the length usually takes.
        is_text = bool(requests.first_token_s)
        scale = {n: max(times[n], _LEAST_PART_S) if is_text else 1.0 for n in latency}
        undelayed = [
            (latency[n] - sum(self._by_request[n].causes.values())) / scale[n]
            for n in usual
        ]
        median, limit = statistics.median(undelayed), slow_above(undelayed)
        self._threshold_ms = None if is_text else limit * 1e3
        excess = {n: latency[n] - median * scale[n] for n in latency}
        self._excess = {  # of slow requests
            n: s
            for n, s in excess.items()
            if s > _LEAST_S and latency[n] > limit * scale[n]
        }

    def tail(self, phase: Sequence[int], missing: Mapping[str, str]) -> Tail:
        """The slow requests of one phase, with their excess explained."""
        slow = [number for number in phase if number in self._excess]
        excess_s = sum(self._excess[number] for number in slow)
        load_s = explained_s = 0.0
        by_cause: dict[CauseKey, dict[int, float]] = defaultdict(dict)
        for number in slow:
            excess, service = self._excess[number], self._by_request[number]
            parts = _capped(service.causes, excess)
            at_usual_speed = excess - sum(service.delays.values())
            load_s += max(0.0, min(excess - sum(parts.values()), at_usual_speed))
            explained_s += sum(parts.values())
            for cause, seconds in parts.items():
                by_cause[cause][number] = seconds
        causes = [self._record(cause, by_cause[cause], excess_s) for cause in by_cause]
        unexplained_s = max(0.0, excess_s - explained_s - load_s)
        return Tail(
            threshold_ms=self._threshold_ms,
            slow=tuple(slow),
            excess_ms=excess_s * 1e3,
            causes=tuple(sorted(causes, key=lambda each: -(each.excess_ms or 0))),
            load_ms=load_s * 1e3,
            load_share=load_s / excess_s if excess_s else None,
            unexplained_ms=unexplained_s * 1e3,
            unexplained_share=unexplained_s / excess_s if excess_s else None,
            missing=dict(missing),
        )

    def _record(
        self, cause: CauseKey, seconds: Mapping[int, float], excess_s: float
    ) -> TailCause:
        """The record of a cause, from the seconds it added to each slow request."""
        delayed = {
            n for n, s in seconds.items() if s >= _VICTIM_SHARE * self._excess[n]
        }
        hit = [
            (service.members, overlap.number)
            for service in self._services
            for overlap in service.overlaps
            if overlap.cause == cause
        ]
        in_slow = [each for each in hit if not delayed.isdisjoint(each[0])]
        numbers = sorted({number for _, number in in_slow or hit})
        own = (m for m, number in in_slow if self._stalls[number].request in m)
        culprits = {number for members in own for number in members}
        stalls = [self._stalls[number] for number in numbers]
        text, remedy = describe(cause, stalls)
        total_s = sum(seconds.values())
        return TailCause(
            code=cause.cause.code,
            kind=stalls[0].kind,
            text=text,
            remedy=remedy,
            stalls=tuple(numbers),
            culprits=tuple(sorted(culprits)),
            victims=tuple(sorted(delayed - culprits)),
            excess_ms=total_s * 1e3,
            share=total_s / excess_s,
        )
