"""Explains slow requests by the stalls that delayed them.

A request is slow if its latency is above the median by more than three times the spread
below the median, a quarter of the median, and half a millisecond. Its excess is what it
took longer than the median. The median is that of latencies without the stalls, because
one long stall may delay most requests.

The interval of each service is joined with those of the stalls, and each moment counts
once. What a service takes longer than usual delays the requests behind it on the same
worker, as far as they waited: so the backlog after a stall belongs to the stall. What
is left of the excess at usual service times is load. The rest is unexplained.

A request for text is compared with what its length usually takes.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, NamedTuple

from torchproof.measure.loadtest.tail_causes import (
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
_FEW = 3  # services from which the usual time is known

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
    served = [n for n, begin in enumerate(requests.begin_s) if begin is not None]
    served = [number for number in served if requests.end_s[number] is not None]
    boundary = len(requests.arrival_s) if first_warm is None else first_warm
    phases = [n for n in served if n < boundary], [n for n in served if n >= boundary]
    # An error may come much faster than an answer, so it says nothing about the median.
    answered = {*served} - {*requests.failed}
    if not answered:
        return Tails(None, None)
    analysis = _Analysis(requests, stalls)
    analysis.set_median(answered.intersection(phases[1]) or answered)
    return Tails(
        *(analysis.tail(phase, missing or {}) if phase else None for phase in phases)
    )


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
            if stall.thread is not None and not _has_another(stall, found):
                found.append(OutermostStall(index, stall))
        elif around is not None and stall.end_s <= around.stall.end_s:
            around.inner.append(stall)
        else:
            last[stall.thread] = OutermostStall(index, stall)
            found.append(last[stall.thread])
    return found


def _has_another(held: Stall, before: Sequence[OutermostStall]) -> bool:
    """Whether the thread that held the GIL has another stall at that time."""
    return any(
        held.thread == each.stall.thread
        and each.stall.begin_s < held.end_s
        and each.stall.end_s > held.begin_s
        for each in before
    )


class _Effect(IntEnum):
    """How a stall delays a service; of two at a moment, the first one counts."""

    OWN = 0
    COLLECTS = 1
    HOLDS_GIL = 2
    BESIDE = 3  # it slows others down, so it explains no more than the excess
    POLLED = 4  # when it happened is only roughly known


def _effect(stall: Stall, members: Sequence[int]) -> _Effect | None:
    """None if the stall does not delay the service of these requests."""
    own = stall.request is not None and stall.request in members
    if stall.kind == "allocator":
        return _Effect.POLLED
    if own:
        return None if stall.kind == "gil" else _Effect.OWN
    if stall.kind == "cpu":  # the wait of another request
        return None
    effects = {"gc": _Effect.COLLECTS, "gil": _Effect.HOLDS_GIL}
    return effects.get(stall.kind, _Effect.BESIDE)


# -- services --------------------------------------------------------------------------


class _Overlap(NamedTuple):
    """The seconds of a service that a stall covers, and no stall before it."""

    found: OutermostStall
    effect: _Effect
    seconds: float

    @property
    def cause(self) -> CauseKey:
        return key_of(self.found.stall)


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
    failed: bool
    ready: float = 0.0
    usual: float = 0.0
    overlaps: list[_Overlap] = field(default_factory=list)
    delays: Delays = field(default_factory=dict)

    @property
    def taken(self) -> float:
        return self.end - self.ready

    @property
    def stopped(self) -> float:
        """The seconds in which it did nothing."""
        return sum(o.seconds for o in self.overlaps if o.effect < _Effect.BESIDE)

    @property
    def is_beside(self) -> bool:
        return any(o.effect >= _Effect.BESIDE for o in self.overlaps)


def _services(requests: Requests) -> list[_Service]:
    """In the order in which they began."""
    failed = {*requests.failed}
    batches: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number, (begin, end) in enumerate(
        zip(requests.begin_s, requests.end_s, strict=True)
    ):
        if begin is not None and end is not None:
            alone = number if (_at(requests.batch, number) or 1) == 1 else None
            key = (begin, end, _at(requests.worker, number), alone)
            batches[key].append(number)
    services = [
        _Service(
            members=tuple(members),
            worker=worker,
            arrival=max(requests.arrival_s[number] for number in members),
            begin=begin,
            end=end,
            kind=tuple(sorted(requests.call[number] for number in members)),
            failed=members[0] in failed,
        )
        for (begin, end, worker, _), members in batches.items()
    ]
    services.sort(key=lambda service: (service.begin, service.arrival))
    ends: dict[int | None, float] = {}
    for service in services:
        free = ends.get(service.worker, service.arrival)
        service.ready = min(max(service.arrival, free), service.begin)
        ends[service.worker] = service.end
    return services


def _at(values: Sequence[int | None], number: int) -> int | None:
    return values[number] if number < len(values) else None


def _join(services: Sequence[_Service], stalls: Sequence[OutermostStall]) -> None:
    """Gives each service the stalls during it; both are in order of time."""
    waiting = iter(stalls)
    following = next(waiting, None)
    active: list[OutermostStall] = []
    for service in sorted(services, key=lambda service: service.ready):
        active = [each for each in active if each.stall.end_s > service.ready]
        while following is not None and following.stall.begin_s < service.end:
            if following.stall.end_s > service.ready:
                active.append(following)
            following = next(waiting, None)
        service.overlaps = list(_overlaps(service, active))


def _overlaps(
    service: _Service, during: Iterable[OutermostStall]
) -> Iterator[_Overlap]:
    effects = [(_effect(each.stall, service.members), each) for each in during]
    known = [(effect, each) for effect, each in effects if effect is not None]
    covered: list[tuple[float, float]] = []
    for effect, each in sorted(known, key=lambda pair: pair[0]):
        first = service.begin if effect is _Effect.OWN else service.ready
        begin, end = max(each.stall.begin_s, first), min(each.stall.end_s, service.end)
        pieces = _uncovered(begin, end, covered)
        if seconds := sum(high - low for low, high in pieces):
            covered += pieces
            yield _Overlap(each, effect, seconds)


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


def _set_usual(services: Sequence[_Service], by_length: Mapping[int, float]) -> None:
    """The median of what services of one kind take when nothing stops them.

    Services that failed, or ran beside a compilation in another thread, count only if
    there are few others. Of text, `by_length` has it.
    """
    alone: dict[Hashable, list[float]] = defaultdict(list)
    every: dict[Hashable, list[float]] = defaultdict(list)
    for service in services:
        seconds = max(0.0, service.taken - service.stopped)
        every[service.kind].append(seconds)
        if not service.is_beside and not service.failed:
            alone[service.kind].append(seconds)
    usual = {
        kind: statistics.median(alone[kind] if len(alone[kind]) >= _FEW else times)
        for kind, times in every.items()
    }
    for service in services:
        service.usual = by_length.get(service.members[0], usual[service.kind])


def _set_delays(services: Sequence[_Service]) -> None:
    """Follows the delay of each service to those behind it on the same worker."""
    last: dict[int | None, _Service] = {}
    for service in services:
        delays: Delays = defaultdict(float)
        before, waited = last.get(service.worker), service.ready - service.arrival
        if before is not None and waited > 0:
            delays |= _capped(before.delays, waited)
        excess = max(0.0, service.taken - service.usual)
        for overlap in service.overlaps:
            seconds = min(overlap.seconds, excess)
            delays[overlap.cause] += seconds
            excess -= seconds
        delays[None] += excess
        service.delays = delays
        last[service.worker] = service


def _capped(parts: Delays, most: float) -> Delays:
    """The parts, scaled down if they are more than this together."""
    total = sum(parts.values())
    scale = min(1.0, max(0.0, most) / total) if total > 0 else 0.0
    scaled = {key: seconds * scale for key, seconds in parts.items()}
    return {key: each for key, each in scaled.items() if each > _LEAST_PART_S}


def usual_times(requests: Requests) -> dict[int, float]:
    """By request for text, what its prompt and its number of tokens usually take.

    They are medians: that of prefills of the same padded size, and that of the time
    per further token. Empty without text.
    """
    prefill_s: dict[int, list[float]] = defaultdict(list)
    per_token_s = []
    firsts = zip(requests.begin_s, requests.first_token_s, strict=False)
    for number, (begin, first) in enumerate(firsts):
        if begin is None or first is None:
            continue
        prefill_s[requests.call[number]].append(first - begin)
        end, tokens = requests.end_s[number], requests.output_tokens[number]
        if end is not None and tokens is not None and tokens > 1:
            per_token_s.append((end - first) / (tokens - 1))
    step_s = statistics.median(per_token_s) if per_token_s else 0.0
    usual_s = {call: statistics.median(each) for call, each in prefill_s.items()}
    return {
        number: usual_s[requests.call[number]]
        + step_s * max(0, (requests.output_tokens[number] or 1) - 1)
        for number, first in enumerate(requests.first_token_s)
        if first is not None and requests.begin_s[number] is not None
    }


# -- the analysis ----------------------------------------------------------------------


class _Analysis:
    """What each cause added to the latency of each request."""

    def __init__(self, requests: Requests, stalls: Sequence[Stall]) -> None:
        self._requests = requests
        # Latencies are compared in relation to what the length of a text usually takes.
        self._scale = usual_times(requests)
        self._services = _services(requests)
        _join(self._services, outermost(stalls))
        _set_usual(self._services, self._scale)
        _set_delays(self._services)
        self._delays = {
            number: service.delays
            for service in self._services
            for number in service.members
        }
        self._median = self._limit = 0.0

    def set_median(self, numbers: Iterable[int]) -> None:
        """Takes the median of these requests, and from where on one is slow."""
        latencies = [
            (self._latency(n) - sum(self._causes(n).values())) / self._scale_of(n)
            for n in numbers
        ]
        self._median = statistics.median(latencies)
        self._limit = slow_above(latencies)

    def _latency(self, number: int) -> float:
        end = self._requests.end_s[number]
        assert end is not None
        return end - self._requests.arrival_s[number]

    def _causes(self, number: int) -> Delays:
        delays = self._delays[number]
        return {cause: s for cause, s in delays.items() if cause is not None}

    def _scale_of(self, number: int) -> float:
        return max(self._scale.get(number, 1.0), _LEAST_PART_S)

    def _excess(self, number: int) -> float:
        return self._latency(number) - self._median * self._scale_of(number)

    def _is_slow(self, number: int) -> bool:
        above = self._latency(number) > self._limit * self._scale_of(number)
        return above and self._excess(number) > _LEAST_S

    def tail(self, phase: Sequence[int], missing: Mapping[str, str]) -> Tail:
        """The slow requests of one phase, with their excess explained."""
        slow = [number for number in phase if self._is_slow(number)]
        excess_s = sum(map(self._excess, slow))
        load_s = explained_s = 0.0
        by_cause: dict[CauseKey, dict[int, float]] = defaultdict(dict)
        for number in slow:
            excess = self._excess(number)
            parts = _capped(self._causes(number), excess)
            at_usual_speed = excess - sum(self._delays[number].values())
            load_s += max(0.0, min(excess - sum(parts.values()), at_usual_speed))
            explained_s += sum(parts.values())
            for cause, seconds in parts.items():
                assert cause is not None
                by_cause[cause][number] = seconds
        causes = [self._record(cause, by_cause[cause], excess_s) for cause in by_cause]
        unexplained_s = max(0.0, excess_s - explained_s - load_s)
        return Tail(
            threshold_ms=None if self._scale else self._limit * 1e3,
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
            number
            for number, part in seconds.items()
            if part >= _VICTIM_SHARE * self._excess(number)
        }
        hit = [
            (service, overlap.found)
            for service in self._services
            for overlap in service.overlaps
            if overlap.cause == cause
        ]
        in_slow = [each for each in hit if not delayed.isdisjoint(each[0].members)]
        during = {found.index: found for _, found in in_slow or hit}
        found = [during[index] for index in sorted(during)]
        culprits = {
            member
            for service, each in in_slow
            if each.stall.request in service.members
            for member in service.members
        }
        stalls = [each.stall for each in found]
        total_s = sum(seconds.values())
        return TailCause(
            code=cause.code,
            kind=stalls[0].kind,
            text=text_of(cause, stalls),
            remedy=remedy_of(cause, stalls),
            stalls=tuple(each.index for each in found),
            culprits=tuple(sorted(culprits)),
            victims=tuple(sorted(delayed - culprits)),
            excess_ms=total_s * 1e3,
            share=total_s / excess_s,
            other=_inner(found),
        )


def _inner(stalls: Iterable[OutermostStall]) -> dict[str, Any]:
    """The milliseconds that stalls contain of other kinds, which count only once."""
    parts: dict[str, float] = defaultdict(float)
    for each in stalls:
        for stall in each.inner:
            parts[stall.kind] += (stall.end_s - stall.begin_s) * 1e3
    return {"parts_ms": dict(parts)} if parts else {}
