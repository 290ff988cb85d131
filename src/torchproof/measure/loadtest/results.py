"""Turns the requests of a strategy into its result: percentiles, cold phase, verdict.

Everything is computed from the requests, without a clock, a process or torch.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

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


class Answers(NamedTuple):
    """The times of each request in milliseconds; infinite if it was not answered."""

    latency: list[float]
    queueing: list[float]
    service: list[float]


def answers_of(requests: Requests) -> Answers:
    arrival, begin, end = _times(requests)
    # A time before the arrival can only come from rounding.
    queueing = np.maximum(0.0, begin - arrival)
    return Answers(*map(_milliseconds, (end - arrival, queueing, end - begin)))


def _times(requests: Requests) -> Any:
    """Arrival, begin and end of each request; NaN without an answer."""
    times = requests.arrival_s, requests.begin_s, requests.end_s
    arrays = [np.array(each, dtype=float) for each in times]
    arrays[2][list(requests.failed)] = np.nan  # an error is no answer
    return arrays


def _milliseconds(seconds: Any) -> list[float]:
    times: list[float] = np.where(np.isnan(seconds), np.inf, seconds * 1e3).tolist()
    return times


def metric_ms(requests: Requests, metric: LatencyMetric) -> list[float]:
    """What an objective limits, per request; infinite if it was not answered."""
    arrival, _, end = _times(requests)
    if metric == "latency" or not requests.first_token_s:
        return _milliseconds(end - arrival)
    first = np.array(requests.first_token_s, dtype=float)
    tokens = np.array(requests.output_tokens, dtype=float)
    each = first - arrival if metric == "first_token" else end - first
    each = each / np.maximum(1, tokens - 1) if metric == "token" else each
    return _milliseconds(np.where(np.isnan(end + first + tokens), np.nan, each))


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
    ends = [end for end in requests.end_s if end is not None]
    seconds = max([timetable.length_s, *ends])  # from the start to the last answer
    failed, rejected = len(requests.failed), len(requests.rejected)
    result = LoadResult(
        strategy,
        requests=requests,
        latency=percentiles(answers.latency[first:], warm_starts, more=judged),
        queueing=percentiles(answers.queueing[first:], warm_starts, more=judged),
        service=percentiles(service_ms, more=judged),
        all_latency=percentiles(answers.latency, starts, more=judged),
        answered=len(ends) - failed,
        failed=failed,
        rejected=rejected,
        unserved=len(requests.arrival_s) - len(ends) - rejected,
        offered_rate=_rate(len(timetable), timetable.length_s),
        answered_rate=_rate(len(ends) - failed, seconds),
        kept_up=kept_up(requests, timetable, window_s),
        cold=phase,
        **_lateness(lateness_ms, service_ms),
    )
    if objective is None:
        return result
    judgement = judge_result(result, objective, workers=workers)
    return replace(
        result,
        verdict=judgement.verdict,
        needed=judgement.needed,
        goodput_rate=_rate(_over(requests, objective).count(False), seconds),
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
    ends = zip(requests.end_s, latency, strict=True)
    answered = [(end, ms) for end, ms in ends if end is not None and math.isfinite(ms)]
    # Who waits behind the last one has waited less; twice leaves room for its service.
    usual_ms = 2 * max(answered)[1] if answered else 0.0
    patience_s = max(usual_ms, objective.limit_ms if objective else 0.0) / 1e3
    rejected = {*requests.rejected}
    for number, arrival in enumerate(requests.arrival_s):
        waits = requests.end_s[number] is None and number not in rejected
        if waits and stopped_s - arrival <= patience_s:
            return number
    return len(requests.arrival_s)


def starts_from(first: int, starts: Sequence[int]) -> list[int]:
    """The starts of cycles, counted from a request that begins one itself."""
    return [0, *(start - first for start in starts if start > first)]


def _lateness(
    lateness_ms: Sequence[float], service_ms: Sequence[float]
) -> dict[str, Any]:
    """How late idle workers were: the largest of 100, without an interval."""
    if not lateness_ms:
        return {}
    late_ms = sorted(lateness_ms)[math.ceil(0.99 * len(lateness_ms)) - 1]
    usual_ms = sorted(service_ms)[len(service_ms) // 2] if service_ms else 0.0
    on_time = late_ms <= max(_LATE_MS, _LATE_SHARE * usual_ms)
    return {"late_ms": max(0.0, late_ms), "on_time": on_time}


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds else None


# -- the queue -------------------------------------------------------------------------


def kept_up(
    requests: Requests, timetable: Timetable, window_s: float = 0.0
) -> bool | None:
    """Whether the strategy answered as fast as requests arrived.

    False if requests were not served, or if in the last quarter of the timetable the
    queue grew by more than chance explains. True if it was empty at a moment of that
    quarter. None if neither tells.
    """
    taken = np.ones(len(requests.arrival_s), dtype=bool)
    taken[list(requests.rejected)] = False
    arrivals = np.array(requests.arrival_s)[taken]
    begins = np.array(requests.begin_s, dtype=float)[taken]
    if np.isnan(begins).any():
        return False
    begins = np.sort(begins - window_s)
    end_s = timetable.length_s
    begin_s = 0.75 * end_s

    def waiting(moments: Any) -> Any:
        arrived = np.searchsorted(arrivals, moments, side="right")
        return arrived - np.searchsorted(begins, moments, side="right")

    late = begins[(begins >= begin_s) & (begins <= end_s)]
    # A batch that is full begins before the end of its window: fewer than none wait.
    if (waiting(np.append(late, end_s)) <= 0).any():
        return True
    count = np.count_nonzero((arrivals >= begin_s) & (arrivals <= end_s))
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
    ends = [(n, end) for n, end in enumerate(requests.end_s) if end is not None]
    answers = [end for number, end in ends if number not in failed]
    phase = ColdPhase(first_answer_s=min(answers, default=None))
    end_s = _end_of_cold(requests, timetable, window_s) if answers else None
    if end_s is not None:
        count = bisect.bisect_right(requests.arrival_s, end_s)
        phase = replace(phase, end_s=end_s, requests=count)
    if objective is None:
        return phase
    over = _over(requests, objective)
    missed = None if phase.requests is None else sum(over[: phase.requests])
    met_s = _met_from(requests, over, objective)
    return replace(phase, missed=missed, objective_met_s=met_s)


def _end_of_cold(
    requests: Requests, timetable: Timetable, window_s: float
) -> float | None:
    """When every call of the first half was answered and no request waits.

    A call that fails in every request is never answered: the first failure counts.
    """
    failed, rejected = {*requests.failed}, {*requests.rejected}
    ends: dict[int, list[tuple[bool, float]]] = {}
    for number, arrival in enumerate(requests.arrival_s):
        call, end = requests.call[number], requests.end_s[number]
        if arrival <= timetable.length_s / 2 or not ends:
            ends.setdefault(call, [])
        if call in ends and end is not None:
            ends[call].append((number in failed, end))  # answers sort before failures
    if not all(ends.values()) or not ends:
        return None
    moment = max(min(each)[1] for each in ends.values())
    for number, arrival in enumerate(requests.arrival_s):  # from then on, who waits?
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
    count, slow = len(over), np.array(over, dtype=bool)
    slow_from = np.cumsum(slow[::-1])[::-1]
    allowed = (1 - objective.percent / 100) * np.arange(count, 0, -1)
    holds = np.flatnonzero((slow_from <= allowed) & ~slow)
    if not len(holds):
        return None
    first = int(holds[0])
    rest = over[first:]
    if judge(rest, objective.percent, range(len(rest))).verdict == "missed":
        return None
    return requests.arrival_s[first]


def first_warm(phase: ColdPhase | None, requests: Requests) -> int:
    """The number of the first request after the cold phase."""
    if phase is None:
        return 0
    return len(requests.arrival_s) if phase.requests is None else phase.requests
