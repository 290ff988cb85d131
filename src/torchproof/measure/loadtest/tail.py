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

import statistics
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from torchproof.measure.loadtest.tail_causes import CauseKey, describe, key_of
from torchproof.records import LoadResult, Requests, Stall, Tail, TailCause

_SPREADS = 3.0
_SHARE_OF_MEDIAN = 0.25
_LEAST_S = 0.0005
_SPREAD_OF_MAD = 1.4826  # a standard deviation, of a normal distribution
_VICTIM_SHARE = 0.05  # of a request's excess
_LEAST_PART_S = 1e-6
_FEW = 3  # services from which the usual time is known
# Which of several stalls at a time explains a service first. Those in its own thread,
# collections and holds of the GIL stop it. Others slow it down, or were only polled.
_OWN, _SLOWS, _POLLED = 0, 3, 4
_STOPS = {"gc": 1, "gil": 2}

Key = TypeVar("Key")
# Seconds by cause; None stands for services that took long without a stall.
Delays = dict[CauseKey | None, float]


class Tails(NamedTuple):
    """The slow requests until the cold phase ended, and those afterwards."""

    cold: Tail | None
    warm: Tail | None


def explained(
    result: LoadResult, stalls: Sequence[Stall], missing: Mapping[str, str]
) -> LoadResult:
    """The result with its stalls, and its slow requests explained by them."""
    cold = result.cold
    first_warm = 0 if cold is None else cold.requests
    tails = explain(result.requests, stalls, first_warm, missing)
    return replace(
        result,
        stalls=tuple(stalls),
        tail=tails.warm,
        cold=None if cold is None else replace(cold, tail=tails.cold),
    )


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


def _priority(stall: Stall, members: Sequence[int]) -> int | None:
    """Which stall counts first, from `_OWN` to `_POLLED`; None if it delays nobody."""
    if stall.kind == "allocator":
        return _POLLED
    if stall.request is not None and stall.request in members:
        return None if stall.kind == "gil" else _OWN
    if stall.kind == "cpu":  # the wait of another request
        return None
    return _STOPS.get(stall.kind, _SLOWS)


class _Overlap(NamedTuple):
    """The seconds of a service that a stall covers."""

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
    ready: float = 0.0
    overlaps: list[_Overlap] = field(default_factory=list)
    delays: Delays = field(default_factory=dict)

    @property
    def taken(self) -> float:
        return self.end - self.ready

    @property
    def moved(self) -> float:
        """The seconds in which nothing stopped it."""
        return max(0.0, self.taken - sum(o.seconds for o in self.overlaps if o.stops))

    @property
    def causes(self) -> dict[CauseKey, float]:
        return {cause: seconds for cause, seconds in self.delays.items() if cause}

    def join(self, during: Sequence[tuple[int, Stall]]) -> None:
        """Adds the overlap with each stall, the most certain one first."""
        for number, stall in during:
            priority = _priority(stall, self.members)
            first = self.begin if priority == _OWN else self.ready
            seconds = min(stall.end_s, self.end) - max(stall.begin_s, first)
            if priority is not None and seconds > 0:
                overlap = _Overlap(priority, number, key_of(stall), seconds)
                self.overlaps.append(overlap)
        self.overlaps.sort(key=lambda overlap: overlap.priority)


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
    services = [
        _Service(
            tuple(members),
            worker,
            arrival=max(requests.arrival_s[number] for number in members),
            begin=begin,
            end=end,
            kind=tuple(sorted(requests.call[number] for number in members)),
        )
        for (begin, end, worker, _), members in batches.items()
    ]
    services.sort(key=lambda service: (service.begin, service.arrival))
    for before, service in _followed(services):
        free = service.arrival if before is None else before.end
        service.ready = min(max(service.arrival, free), service.begin)
    return services


def _followed(
    services: Sequence[_Service],
) -> Iterator[tuple[_Service | None, _Service]]:
    """Each service with the one before it on its worker."""
    last: dict[int | None, _Service] = {}
    for service in services:
        yield last.get(service.worker), service
        last[service.worker] = service


def _outermost(stalls: Sequence[Stall]) -> list[tuple[int, Stall]]:
    """Stalls that no other stall of their thread contains, in order of begin.

    A thread that already compiles or collects when it holds the GIL is one stall, and a
    thread that nobody knows is none.
    """
    found: list[tuple[int, Stall]] = []
    last: dict[str | None, Stall] = {}
    for number, stall in sorted(
        enumerate(stalls), key=lambda each: (each[1].begin_s, -each[1].end_s)
    ):
        if stall.kind == "gil":
            same = (each for _, each in found if each.thread == stall.thread)
            if stall.thread is None or any(s.end_s > stall.begin_s for s in same):
                continue
        elif stall.thread in last and stall.end_s <= last[stall.thread].end_s:
            continue
        else:
            last[stall.thread] = stall
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


def _set_delays(services: Sequence[_Service], usual: Mapping[int, float]) -> None:
    """Follows the delay of each service to those behind it on the same worker.

    `usual` has what a service takes by its first member.
    """
    for before, service in _followed(services):
        delays: Delays = defaultdict(float)
        waited = service.ready - service.arrival
        if before is not None and waited > 0:
            delays |= _capped(before.delays, waited)
        excess = max(0.0, service.taken - usual[service.members[0]])
        for overlap in service.overlaps:
            seconds = min(overlap.seconds, excess)
            delays[overlap.cause] += seconds
            excess -= seconds
        delays[None] += excess
        service.delays = delays


def _capped(parts: Mapping[Key, float], most: float) -> dict[Key, float]:
    """The parts, scaled down if they are more than this together."""
    total = sum(parts.values())
    scale = min(1.0, max(0.0, most) / total) if total > 0 else 0.0
    scaled = {key: seconds * scale for key, seconds in parts.items()}
    return {key: each for key, each in scaled.items() if each > _LEAST_PART_S}


# -- what is usual ---------------------------------------------------------------------


def _usual_services(
    services: Sequence[_Service], failed: Collection[int]
) -> dict[int, float]:
    """The median of what services of one kind take when nothing stops them.

    Services that failed, or ran beside a compilation in another thread, count only if
    there are few others.
    """
    alone: dict[Hashable, list[float]] = defaultdict(list)
    every: dict[Hashable, list[float]] = defaultdict(list)
    for service in services:
        every[service.kind].append(service.moved)
        is_slowed = not all(overlap.stops for overlap in service.overlaps)
        if not is_slowed and {*service.members}.isdisjoint(failed):
            alone[service.kind].append(service.moved)
    usual = {
        kind: statistics.median(alone[kind] if len(alone[kind]) >= _FEW else times)
        for kind, times in every.items()
    }
    return {service.members[0]: usual[service.kind] for service in services}


def usual_times(requests: Requests) -> dict[int, float]:
    """By request for text, what its prompt and its number of tokens usually take.

    They are medians: that of prefills of the same padded size, and that of the time
    per further token. Empty without text.
    """
    prefill_s: dict[int, list[float]] = defaultdict(list)
    per_token_s: list[float] = []
    further: dict[int, int] = {}  # tokens after the first, by request
    for number, first in enumerate(requests.first_token_s):
        begin, end = requests.begin_s[number], requests.end_s[number]
        if begin is None or end is None or first is None:
            continue
        prefill_s[requests.call[number]].append(first - begin)
        further[number] = max(0, (requests.output_tokens[number] or 1) - 1)
        if further[number]:
            per_token_s.append((end - first) / further[number])
    step_s = statistics.median(per_token_s or [0.0])
    usual_s = {call: statistics.median(each) for call, each in prefill_s.items()}
    return {n: usual_s[requests.call[n]] + step_s * more for n, more in further.items()}


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
        # Latencies are compared in relation to what the length of a text usually takes.
        text = usual_times(requests)
        _set_delays(
            self._services, _usual_services(self._services, requests.failed) | text
        )
        self._by_request = {n: each for each in self._services for n in each.members}
        served = self._by_request
        latency = {n: served[n].end - requests.arrival_s[n] for n in served}
        scale = {n: max(text.get(n, 1.0), _LEAST_PART_S) for n in latency}
        undelayed = [
            (latency[n] - sum(served[n].causes.values())) / scale[n] for n in usual
        ]
        median, limit = statistics.median(undelayed), slow_above(undelayed)
        self._threshold_ms = None if text else limit * 1e3
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
        least = {number: _VICTIM_SHARE * self._excess[number] for number in seconds}
        delayed = {number for number in seconds if seconds[number] >= least[number]}
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
