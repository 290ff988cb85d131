"""Turns the requests of a strategy into its result: percentiles, cold phase, verdict.

Everything is computed from the requests, without a clock, a process or torch.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from torchproof.measure.loadtest.load_job import ServingReply
from torchproof.measure.loadtest.percentiles import (
    Judgement,
    cycle_starts,
    judge,
    percentiles,
)
from torchproof.measure.loadtest.tail import explain
from torchproof.records import (
    ColdPhase,
    Generation,
    LatencyMetric,
    LatencyObjective,
    LoadResult,
    Requests,
)
from torchproof.records.load_options import LoadOptions

# The queue of a server that keeps up changes by about the square root of the arrivals.
# A growth beyond this many of them has a probability of 1 percent.
_CHANCE = 2.33
# An idle worker that takes requests later than this does not keep the timetable.
_LATE_MS = 2.0
_LATE_SHARE = 0.2  # of the median time of service, if that is more


def _array(values: Sequence[Any], missing: Sequence[int] = ()) -> Any:
    """Numbers; NaN is what is None or `missing`."""
    array = np.array(values, dtype=float)
    array[list(missing)] = np.nan
    return array


def metric_ms(
    requests: Requests, metric: LatencyMetric | Literal["queueing", "service"]
) -> Any:
    """An array of milliseconds, one per request; infinite if it was not answered."""
    arrival, begin = _array(requests.arrival_s), _array(requests.begin_s)
    end = _array(requests.end_s, requests.failed)  # an error is no answer
    first, tokens = _array(requests.first_token_s), _array(requests.output_tokens)
    if metric in ("first_token", "token") and not len(first):  # not one was made
        return np.full(len(arrival), np.inf)
    match metric:
        case "latency":
            seconds = end - arrival
        case "queueing":  # a time before the arrival can only come from rounding
            seconds = np.maximum(0.0, begin - arrival)
        case "service":
            seconds = end - begin
        case "first_token":
            seconds = np.where(np.isnan(end + tokens), np.nan, first - arrival)
        case "token":
            seconds = (end - first) / np.maximum(1, tokens - 1)
    return np.where(np.isnan(seconds), np.inf, seconds * 1e3)


def result_of(
    strategy: str,
    requests: Requests,
    length_s: float,
    options: LoadOptions,
    *,
    lateness_ms: Any = (),
    reply: ServingReply | None = None,
) -> LoadResult:
    """The result of a timetable; `reply` is what only the process knows."""
    objective, window_s = options.objective, options.batch_window_s or 0.0
    phase = None
    if options.cold:
        phase = cold_phase(requests, length_s, objective, window_s)
    first = first_warm(phase, requests)
    starts = cycle_starts(requests, options.workers)
    warm_starts = starts_from(first, starts)
    latency_ms = metric_ms(requests, "latency")
    queueing_ms = metric_ms(requests, "queueing")[first:]
    service_ms = _finite(metric_ms(requests, "service")[first:])
    judged = () if objective is None else (objective.percent,)
    ends = [end for end in requests.end_s if end is not None]
    seconds = max([length_s, *ends])  # from the start to the last answer
    failed, rejected = len(requests.failed), len(requests.rejected)
    result = LoadResult(
        strategy,
        requests=requests,
        latency=percentiles(latency_ms[first:], warm_starts, more=judged),
        queueing=percentiles(queueing_ms, warm_starts, more=judged),
        service=percentiles(service_ms, more=judged),
        all_latency=percentiles(latency_ms, starts, more=judged),
        answered=len(ends) - failed,
        failed=failed,
        rejected=rejected,
        unserved=len(requests.arrival_s) - len(ends) - rejected,
        offered_rate=_rate(len(requests.arrival_s), length_s),
        answered_rate=_rate(len(ends) - failed, seconds),
        kept_up=kept_up(requests, length_s, window_s),
        cold=phase,
        **_lateness(lateness_ms, service_ms),
    )
    if requests.first_token_s and options.text is not None:
        generation = _generation(requests, first, warm_starts, options.text.price)
        result = replace(result, generation=generation)
    if objective is not None:
        judgement = judge_result(result, objective, workers=options.workers)
        result = replace(
            result,
            verdict=judgement.verdict,
            needed=judgement.needed,
            goodput_rate=_rate(int((~_over(requests, objective)).sum()), seconds),
        )
    if reply is None or reply.stalls is None:
        return result
    first_after = phase.requests if phase else 0
    tails = explain(requests, reply.stalls, first_after, reply.missing)
    return replace(
        result,
        errors=reply.errors,
        stalls=reply.stalls,
        peak_bytes=reply.peak_bytes,
        tail=tails.warm,
        cold=phase and replace(phase, tail=tails.cold),
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


def _over(requests: Requests, objective: LatencyObjective) -> Any:
    """Which requests exceed the limit of the objective."""
    return metric_ms(requests, objective.metric) > objective.limit_ms


def first_unknown(
    requests: Requests, stopped_s: float, objective: LatencyObjective | None
) -> int:
    """The first request whose latency is not known because the test was stopped.

    It had no answer, and had not waited long yet: no longer than the objective allows,
    or about as long as the request that was answered last. One that had waited longer
    is a result. The number of all requests if there is no such request.
    """
    arrival, end = _array(requests.arrival_s), _array(requests.end_s)
    patience_ms = objective.limit_ms if objective else 0.0
    latency_ms = metric_ms(requests, "latency")
    if (answered := np.isfinite(latency_ms)).any():
        last = answered & (end == end[answered].max())
        # Who waits behind it has waited less; twice leaves room for its service.
        patience_ms = max(patience_ms, 2 * latency_ms[last].max())
    waits = np.isnan(end) & (stopped_s - arrival <= patience_ms / 1e3)
    waits[list(requests.rejected)] = False
    return int(np.argmax(waits)) if waits.any() else len(arrival)


def starts_from(first: int, starts: Sequence[int]) -> list[int]:
    """The starts of cycles, counted from a request that begins one itself."""
    return [0, *(start - first for start in starts if start > first)]


def _lateness(lateness_ms: Any, service_ms: Any) -> dict[str, Any]:
    """How late idle workers were: the largest of 100, without an interval."""
    if not len(lateness_ms):
        return {}
    late_ms = _at(lateness_ms, math.ceil(0.99 * len(lateness_ms)) - 1)
    usual_ms = _at(service_ms, len(service_ms) // 2) if len(service_ms) else 0.0
    on_time = late_ms <= max(_LATE_MS, _LATE_SHARE * usual_ms)
    return {"late_ms": max(0.0, late_ms), "on_time": on_time}


def _at(values: Any, place: int) -> float:
    return float(np.sort(values)[place])


def _finite(values: Any) -> Any:
    return values[np.isfinite(values)]


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds else None


# -- text ------------------------------------------------------------------------------


def _generation(
    requests: Requests, first: int, starts: Sequence[int], price: float | None
) -> Generation:
    """The times of tokens, after the cold phase; counts of tokens are of all."""
    arrival, end = _array(requests.arrival_s), _array(requests.end_s)
    prompt, tokens = _array(requests.prompt_tokens), _array(requests.output_tokens)
    further = np.nan_to_num(tokens[first:]) != 1
    answered = np.isfinite(metric_ms(requests, "token"))
    answered[:first] = False
    tokens_per_s = None
    if made := int(tokens[answered].sum()):
        # From the first arrival to the last token.
        tokens_per_s = made / float(end[answered].max() - arrival[first])
    return Generation(
        first_token=percentiles(metric_ms(requests, "first_token")[first:], starts),
        per_token=percentiles(_finite(metric_ms(requests, "token")[first:][further])),
        output_tokens=int(np.nansum(tokens)),
        prompt_tokens=int(prompt[~np.isnan(end)].sum()),
        tokens_per_s=tokens_per_s,
        cost_per_million=_cost(price, tokens_per_s),
        currency_per_hour=price,
    )


def with_capacity(result: LoadResult) -> LoadResult:
    """Adds the tokens per second of the highest rate that meets the objective.

    The cost is then that of tokens at this rate.
    """
    generation = result.generation
    trials = [t for t in result.trials if t.rate == result.highest_rate]
    if generation is None or not trials:
        return result
    capacity = trials[-1].tokens_per_s
    generation = replace(
        generation,
        capacity_tokens_per_s=capacity,
        cost_per_million=_cost(generation.currency_per_hour, capacity),
    )
    return replace(result, generation=generation)


def _cost(price_per_hour: float | None, tokens_per_s: float | None) -> float | None:
    """The cost of a million output tokens."""
    if price_per_hour is None or not tokens_per_s:
        return None
    return price_per_hour / 3600 / tokens_per_s * 1e6


# -- the queue -------------------------------------------------------------------------


def kept_up(requests: Requests, length_s: float, window_s: float = 0.0) -> bool | None:
    """Whether the strategy answered as fast as requests arrived.

    False if requests were not served, or if in the last quarter of the timetable the
    queue grew by more than chance explains. True if it was empty at a moment of that
    quarter. None if neither tells.
    """
    taken = np.ones(len(requests.arrival_s), dtype=bool)
    taken[list(requests.rejected)] = False
    arrivals, begins = (
        _array(requests.arrival_s)[taken],
        _array(requests.begin_s)[taken],
    )
    if np.isnan(begins).any():
        return False
    begins = np.sort(begins - window_s)
    end_s, begin_s = length_s, 0.75 * length_s

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
    length_s: float,
    objective: LatencyObjective | None = None,
    window_s: float = 0.0,
) -> ColdPhase:
    """From the first arrival until every call was answered and no request waits.

    A request that waits for others within the window of its batch does not count.
    """
    end = _array(requests.end_s, requests.failed)
    phase, end_s = ColdPhase(), None
    if not np.isnan(end).all():
        phase = ColdPhase(first_answer_s=float(np.nanmin(end)))
        end_s = _end_of_cold(requests, length_s, window_s)
    if end_s is not None:
        count = bisect.bisect_right(requests.arrival_s, end_s)
        phase = replace(phase, end_s=end_s, requests=count)
    if objective is None:
        return phase
    over = _over(requests, objective)
    missed = None if phase.requests is None else int(over[: phase.requests].sum())
    met_s = _met_from(requests, over, objective)
    return replace(phase, missed=missed, objective_met_s=met_s)


def _end_of_cold(requests: Requests, length_s: float, window_s: float) -> float | None:
    """When every call of the first half was answered and no request waits.

    A call that fails in every request is never answered: the first failure counts.
    """
    end, answer = _array(requests.end_s), _array(requests.end_s, requests.failed)
    call = np.array(requests.call)
    early = max(1, bisect.bisect_right(requests.arrival_s, length_s / 2))
    moments = []
    for kind in {*requests.call[:early]}:
        for ends in (answer[call == kind], end[call == kind]):
            if not np.isnan(ends).all():
                moments.append(float(np.nanmin(ends)))
                break
        else:
            return None
    moment, rejected = max(moments), {*requests.rejected}
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
    requests: Requests, slow: Any, objective: LatencyObjective
) -> float | None:
    """The arrival from which on the objective holds until the end; None if never.

    The requests from then on have at most the allowed share over the limit, and begin
    with one within it; they must not refute the objective.
    """
    slow_from = np.cumsum(slow[::-1])[::-1]
    allowed = (1 - objective.percent / 100) * np.arange(len(slow), 0, -1)
    holds = np.flatnonzero((slow_from <= allowed) & ~slow)
    if not len(holds):
        return None
    first = int(holds[0])
    rest = slow[first:]
    if judge(rest, objective.percent, range(len(rest))).verdict == "missed":
        return None
    return requests.arrival_s[first]


def first_warm(phase: ColdPhase | None, requests: Requests) -> int:
    """The number of the first request after the cold phase."""
    if phase is None:
        return 0
    return len(requests.arrival_s) if phase.requests is None else phase.requests
