"""Turns the requests of a strategy into its result: percentiles, cold phase, verdict.

Everything is computed from the requests, without a clock, a process or torch.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchproof.measure.loadtest.percentiles import (
    Judgement,
    cycle_starts,
    judge,
    percentiles,
)
from torchproof.measure.loadtest.timetable import Timetable
from torchproof.records import (
    ColdPhase,
    LatencyMetric,
    LatencyObjective,
    LoadResult,
    Requests,
)

# The queue of a server that keeps up changes by about the square root of the arrivals.
# A growth beyond this many of them has a probability of 1 percent.
_CHANCE = 2.33
# An idle worker that takes requests later than this does not keep the timetable.
_LATE_MS = 2.0
_LATE_SHARE = 0.2  # of the median time of service, if that is more


@dataclass(frozen=True)
class Answers:
    """The times of each request in milliseconds; infinite if it was not answered."""

    latency: list[float]
    queueing: list[float]
    service: list[float]


def answers_of(requests: Requests) -> Answers:
    failed = {*requests.failed}
    latency, queueing, service = [], [], []
    times = zip(requests.arrival_s, requests.begin_s, requests.end_s, strict=True)
    for number, (arrival, begin, end) in enumerate(times):
        answered = begin is not None and end is not None and number not in failed
        latency.append((end - arrival) * 1e3 if answered else math.inf)  # type: ignore[operator]
        # A time before the arrival can only come from rounding.
        queueing.append(
            max(0.0, begin - arrival) * 1e3 if begin is not None else math.inf
        )
        service.append((end - begin) * 1e3 if answered else math.inf)  # type: ignore[operator]
    return Answers(latency, queueing, service)


def metric_ms(requests: Requests, metric: LatencyMetric) -> list[float]:
    """What an objective limits, per request; infinite if it was not answered."""
    latency = answers_of(requests).latency
    if metric == "latency" or not requests.first_token_s:
        return latency
    values = []
    for number, whole_ms in enumerate(latency):
        first_s = requests.first_token_s[number]
        tokens = requests.output_tokens[number]
        if math.isinf(whole_ms) or first_s is None or tokens is None:
            values.append(math.inf)
            continue
        first_ms = (first_s - requests.arrival_s[number]) * 1e3
        if metric == "first_token":
            values.append(first_ms)
        else:
            values.append((whole_ms - first_ms) / max(1, tokens - 1))
    return values


def result_of(
    strategy: str,
    requests: Requests,
    timetable: Timetable,
    *,
    objective: LatencyObjective | None,
    cold: bool,
    workers: int = 1,
    window_s: float = 0.0,
    lateness_ms: Sequence[float] = (),
) -> LoadResult:
    """The result of a strategy, without what only its process knows.

    `window_s` is the time that requests wait for others of their batch.
    """
    phase = cold_phase(requests, timetable, objective, window_s) if cold else None
    first = first_warm(phase, requests)
    starts = cycle_starts(requests, workers)
    warm_starts = starts_from(first, starts)
    answers = answers_of(requests)
    service_ms = _finite(answers.service[first:])
    judged = () if objective is None else (objective.percent,)
    result = replace(
        _counted(strategy, requests, timetable),
        latency=percentiles(answers.latency[first:], warm_starts, more=judged),
        queueing=percentiles(answers.queueing[first:], warm_starts, more=judged),
        service=percentiles(service_ms, more=judged),
        all_latency=percentiles(answers.latency, starts, more=judged),
        kept_up=kept_up(requests, timetable, window_s),
        cold=phase,
    )
    result = _with_lateness(result, lateness_ms, service_ms)
    if objective is None:
        return result
    judgement = judge_result(result, objective, workers=workers)
    within = _over(requests, objective).count(False)
    return replace(
        result,
        verdict=judgement.verdict,
        needed=judgement.needed,
        goodput_rate=_rate(within, _seconds(requests, timetable)),
    )


def judge_result(
    result: LoadResult, objective: LatencyObjective, *, workers: int = 1
) -> Judgement:
    """Whether a strategy meets an objective; it need not be that of the test."""
    over = _over(result.requests, objective)
    first = first_warm(result.cold, result.requests)
    if first == len(over):  # the cold phase did not end, so all of it counts
        first = 0
    starts = starts_from(first, cycle_starts(result.requests, workers))
    judgement = judge(over[first:], objective.percent, starts)
    if judgement.needed is None:
        return judgement
    # A longer test has the same cold phase, whose requests decide nothing.
    return replace(judgement, needed=judgement.needed + first)


def _counted(strategy: str, requests: Requests, timetable: Timetable) -> LoadResult:
    """How many requests were answered, and at which rate."""
    failed, rejected = len(requests.failed), len(requests.rejected)
    ended = sum(end is not None for end in requests.end_s)
    return LoadResult(
        strategy,
        requests=requests,
        answered=ended - failed,
        failed=failed,
        rejected=rejected,
        unserved=len(requests.arrival_s) - ended - rejected,
        offered_rate=_rate(len(timetable), timetable.length_s),
        answered_rate=_rate(ended - failed, _seconds(requests, timetable)),
    )


def _over(requests: Requests, objective: LatencyObjective) -> list[bool]:
    """Which requests exceed the limit of the objective."""
    values = metric_ms(requests, objective.metric)
    return [value > objective.limit_ms for value in values]


def first_unknown(
    requests: Requests, stopped_s: float, objective: LatencyObjective | None
) -> int:
    """The first request whose latency is not known because the test was stopped.

    It had no answer, and had not waited long yet: no longer than the objective allows,
    or about as long as the request that was answered last. One that had waited longer
    is a result. The number of all requests if there is no such request.
    """
    latency = answers_of(requests).latency
    ends = [
        (end, latency[number])
        for number, end in enumerate(requests.end_s)
        if end is not None and math.isfinite(latency[number])
    ]
    # Who waits behind the last one has waited less; twice leaves room for its service.
    usual_s = 2 * max(ends)[1] / 1e3 if ends else 0.0
    patience_s = max(usual_s, objective.limit_ms / 1e3 if objective else 0.0)
    rejected = {*requests.rejected}
    for number, (arrival, end) in enumerate(
        zip(requests.arrival_s, requests.end_s, strict=True)
    ):
        waits = end is None and number not in rejected
        if waits and stopped_s - arrival <= patience_s:
            return number
    return len(requests.arrival_s)


def starts_from(first: int, starts: Sequence[int]) -> list[int]:
    """The starts of cycles, counted from a request that begins one itself."""
    return [0, *(start - first for start in starts if start > first)]


def _with_lateness(
    result: LoadResult, lateness_ms: Sequence[float], service_ms: Sequence[float]
) -> LoadResult:
    """Adds how late idle workers were: the largest of 100, without an interval."""
    if not lateness_ms:
        return result
    late_ms = sorted(lateness_ms)[math.ceil(0.99 * len(lateness_ms)) - 1]
    usual_ms = sorted(service_ms)[len(service_ms) // 2] if service_ms else 0.0
    on_time = late_ms <= max(_LATE_MS, _LATE_SHARE * usual_ms)
    return replace(result, late_ms=max(0.0, late_ms), on_time=on_time)


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds else None


def _seconds(requests: Requests, timetable: Timetable) -> float:
    """From the start to the last answer, at least the length of the timetable."""
    ends = [end for end in requests.end_s if end is not None]
    return max([timetable.length_s, *ends])


# -- the queue -------------------------------------------------------------------------


def kept_up(
    requests: Requests, timetable: Timetable, window_s: float = 0.0
) -> bool | None:
    """Whether the strategy answered as fast as requests arrived.

    False if requests were not served, or if in the last quarter of the timetable the
    queue grew by more than chance explains. True if it was empty at a moment of that
    quarter. None if neither tells.
    """
    rejected = {*requests.rejected}
    taken = [number not in rejected for number in range(len(requests.arrival_s))]
    pairs = zip(requests.begin_s, taken, strict=True)
    if any(begin is None and waits for begin, waits in pairs):
        return False
    arrivals = [a for a, t in zip(requests.arrival_s, taken, strict=True) if t]
    begins = sorted(begin - window_s for begin in requests.begin_s if begin is not None)
    end_s = timetable.length_s
    begin_s = 0.75 * end_s

    def waiting(moment: float) -> int:
        arrived = bisect.bisect_right(arrivals, moment)
        return arrived - bisect.bisect_right(begins, moment)

    late = [begin for begin in begins if begin_s <= begin <= end_s]
    # A batch that is full begins before the end of its window: fewer than none wait.
    if waiting(end_s) <= 0 or any(waiting(begin) <= 0 for begin in late):
        return True
    count = bisect.bisect_right(arrivals, end_s) - bisect.bisect_left(arrivals, begin_s)
    growth = waiting(end_s) - waiting(begin_s)
    return False if growth > _CHANCE * math.sqrt(count) else None


# -- the cold phase --------------------------------------------------------------------


def cold_phase(
    requests: Requests,
    timetable: Timetable,
    objective: LatencyObjective | None = None,
    window_s: float = 0.0,
) -> ColdPhase:
    """From the first arrival until every call was answered and no request waits.

    A request that waits for others within the window of its batch does not count.
    """
    failed = {*requests.failed}
    answers = [
        end
        for number, end in enumerate(requests.end_s)
        if end is not None and number not in failed
    ]
    end_s = _end_of_cold(requests, timetable, window_s) if answers else None
    phase = ColdPhase(end_s=end_s, first_answer_s=min(answers, default=None))
    if end_s is not None:
        count = bisect.bisect_right(requests.arrival_s, end_s)
        phase = replace(phase, requests=count)
    if objective is None:
        return phase
    over = _over(requests, objective)
    if phase.requests is not None:
        phase = replace(phase, missed=sum(over[: phase.requests]))
    return replace(phase, objective_met_s=_met_from(requests, over, objective))


def _end_of_cold(
    requests: Requests, timetable: Timetable, window_s: float
) -> float | None:
    """When every call of the first half was answered and no request waits.

    A call that fails in every request is never answered: the first failure counts.
    """
    failed = {*requests.failed}
    half_s = timetable.length_s / 2
    ends: dict[int, list[tuple[bool, float]]] = {}
    for number, arrival in enumerate(requests.arrival_s):
        call, end = requests.call[number], requests.end_s[number]
        if arrival <= half_s or not ends:
            ends.setdefault(call, [])
        if call in ends and end is not None:
            ends[call].append((number in failed, end))  # answers sort before failures
    if not all(ends.values()) or not ends:
        return None
    return _first_idle(requests, max(min(each)[1] for each in ends.values()), window_s)


def _first_idle(requests: Requests, moment: float, window_s: float) -> float | None:
    """The first moment from this one on at which no request waits for a worker."""
    rejected = {*requests.rejected}
    for number, arrival in enumerate(requests.arrival_s):
        if arrival > moment:
            break
        begin = requests.begin_s[number]
        if begin is not None:
            moment = max(moment, begin - window_s)
        elif number not in rejected:
            return None
    return moment


def _met_from(
    requests: Requests, over: Sequence[bool], objective: LatencyObjective
) -> float | None:
    """The arrival from which on the objective holds until the end; None if never.

    The requests from then on have at most the allowed share over the limit, and begin
    with one within it; they must not refute the objective.
    """
    allowed = 1 - objective.percent / 100
    best, slow = None, 0
    for number in range(len(over) - 1, -1, -1):
        slow += over[number]
        count = len(over) - number
        if slow <= allowed * count and not over[number]:
            best = number
    if best is None:
        return None
    rest = over[best:]
    if judge(rest, objective.percent, range(len(rest))).verdict == "missed":
        return None
    return requests.arrival_s[best]


def first_warm(phase: ColdPhase | None, requests: Requests) -> int:
    """The number of the first request after the cold phase."""
    if phase is None:
        return 0
    return len(requests.arrival_s) if phase.requests is None else phase.requests
