"""Percentiles with intervals, and whether an objective is met, by binomial bounds.

Of `n` independent requests, the number below the true percentile is binomial. So two
order statistics bound it, each side with 99 percent confidence. A percentile is given
only if `n` requests suffice for its upper bound: 459 for p99. Requests that were not
answered count as infinitely slow.

Requests that wait for each other are not independent. When one finds a worker idle, the
queue starts afresh. The requests up to the next such moment are a cycle, and cycles are
the independent observations (the regenerative method for queues): the variance of a
share between them gives the effective sample size. Slow requests also follow each other
where none waits, because something slows all of them down for a while: a sequence of
slow requests counts as one observation.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchproof.records import ObjectiveVerdict, Percentile, Requests
from torchproof.records.load_options import RISK, requests_needed

PERCENTS = (50.0, 90.0, 99.0, 99.9)
_MOST_NEEDED = 10_000_000
_LEAST_CYCLES = 20  # with fewer, blocks of equal length take their place


@dataclass(frozen=True)
class Judgement:
    """Whether an objective is met; if undecided, the requests that would tell."""

    verdict: ObjectiveVerdict
    needed: int | None = None


def percentiles(
    values_ms: Any,
    starts: Sequence[int] | None = None,
    *,
    more: Sequence[float] = (),
) -> tuple[Percentile, ...]:
    """p50, p90, p99 and p99.9, and more; see `percentile`."""
    percents = sorted({*PERCENTS, *more})
    return tuple(percentile(values_ms, percent, starts) for percent in percents)


def percentile(
    values_ms: Any, percent: float, starts: Sequence[int] | None = None
) -> Percentile:
    """A percentile of an array of values in the order of arrival.

    `starts` are the beginnings of independent cycles; without them, every value is
    independent of the others.
    """
    count, share = len(values_ms), percent / 100
    needed = requests_needed(percent)
    if count < needed:
        return Percentile(percent, needed=needed)
    ordered = np.sort(values_ms)
    # The smallest value that this share of the requests does not exceed.
    value = ordered[max(1, math.ceil(share * count - 1e-9)) - 1]
    effect = 1.0
    if starts is not None:
        effect = design_effect(np.asarray(values_ms) > value, starts)
    worth = max(1, int(count / effect))
    low = math.floor(_quantile(worth, share, RISK) * count / worth)
    high = math.ceil((_quantile(worth, share, 1 - RISK) + 1) * count / worth)
    return Percentile(
        percent,
        value_ms=_finite(value),
        low_ms=_finite(ordered[low - 1]) if low else None,
        high_ms=_finite(ordered[high - 1]) if high <= count else None,
    )


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def judge(over: Any, percent: float, starts: Sequence[int] | None = None) -> Judgement:
    """Whether at most `100 - percent` percent of requests exceed a limit.

    `over` says which requests did. The objective is missed if requests would exceed it
    so often with a probability of at most `RISK`, were it met, and met if that holds
    the other way round. With `starts`, the beginnings of independent cycles, requests
    of one cycle or of one burst of slow ones count once in both: one stall with many
    victims proves little, and so does a lucky absence of stalls.
    """
    effect = 1.0
    if starts is not None:
        effect = max(design_effect(over, starts), burst_effect(over))
    count, hits = len(over), int(np.sum(over))
    if verdict := _decided(hits, count, percent, effect):
        return Judgement(verdict)
    return Judgement("undecided", _needed_to_decide(hits, count, percent, effect))


def fewest_missed(count: int, percent: float) -> int:
    """The fewest of `count` independent requests over the limit that miss it."""
    return bisect.bisect_left(
        range(count), True, key=lambda over: _decided(over, count, percent) == "missed"
    )


def _decided(
    hits: int, count: int, percent: float, effect: float = 1.0
) -> ObjectiveVerdict | None:
    allowed = 1 - percent / 100
    worth = int(count / effect)
    if worth and at_most(math.ceil(hits / effect), worth, allowed) <= RISK:
        return "met"
    alone = math.floor(hits / effect)  # independent requests over the limit
    if alone and 1 - at_most(alone - 1, worth, allowed) <= RISK:
        return "missed"
    return None


def _needed_to_decide(
    hits: int, count: int, percent: float, effect: float
) -> int | None:
    """The requests that decide, if the share of slow ones stays; None: too close."""
    share = hits / count if count else 0.0

    def decides(requests: int) -> bool:
        expected = math.ceil(share * requests)
        return _decided(expected, requests, percent, effect) is not None

    low = high = max(count, requests_needed(percent))
    while not decides(high):
        low, high = high, high * 2
        if high > _MOST_NEEDED:
            return None
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        if decides(middle):
            high = middle
        else:
            low = middle
    return high


# -- dependence ------------------------------------------------------------------------


def cycle_starts(requests: Requests, workers: int = 1) -> list[int]:
    """The numbers of the requests that found a worker idle, in order; 0 is one."""
    busy: list[float] = []  # the ends of the requests in the system
    rejected = {*requests.rejected}
    starts = []
    for number, arrival in enumerate(requests.arrival_s):
        while busy and busy[0] <= arrival:
            heapq.heappop(busy)
        if not number or len(busy) < workers:
            starts.append(number)
        end = requests.end_s[number]
        if end is not None:
            heapq.heappush(busy, end)
        elif number not in rejected:
            heapq.heappush(busy, math.inf)
    return starts


def design_effect(over: Any, starts: Sequence[int]) -> float:
    """How many dependent requests are worth one independent one, for a share.

    `over` says which requests count, and `starts` where cycles begin.
    """
    count, hits = len(over), int(np.sum(over))
    if not 0 < hits < count:
        return 1.0
    if len(starts) < _LEAST_CYCLES:
        starts = sorted({n * count // _LEAST_CYCLES for n in range(_LEAST_CYCLES)})
    share = hits / count
    in_cycles = np.add.reduceat(np.asarray(over, dtype=float), starts)
    squares = ((in_cycles - share * np.diff([*starts, count])) ** 2).sum()
    return max(1.0, float(squares) / (count * share * (1 - share)))


def burst_effect(over: Any) -> float:
    """The design effect if requests in a row that count are one observation.

    Independent requests follow each other by chance; they give 1 on average.
    """
    count, hits = len(over), int(np.sum(over))
    if not 0 < hits < count:
        return 1.0
    share = hits / count
    edges = np.flatnonzero(np.diff([0, *over, 0]))  # begins and ends, by turns
    lengths = edges[1::2] - edges[::2]
    squares = float((lengths**2).sum()) * (1 - share) ** 2 + (count - hits) * share**2
    by_chance = 1 + 2 * share
    return max(1.0, squares / (count * share * (1 - share)) / by_chance)


# -- the binomial distribution ---------------------------------------------------------


def at_most(successes: int, count: int, share: float) -> float:
    """The probability of at most so many successes."""
    if successes < 0:
        return 0.0
    if successes >= count:
        return 1.0
    first, masses = _masses(count, share)
    return min(1.0, float(masses[: max(0, successes - first + 1)].sum()))


def _quantile(count: int, share: float, probability: float) -> int:
    """The largest k with P(fewer than k successes) <= probability."""
    first, masses = _masses(count, share)
    return first + int(np.searchsorted(np.cumsum(masses), probability, side="right"))


def _masses(count: int, share: float) -> tuple[int, Any]:
    """The first number of successes that matters, and the probabilities from there."""
    mean, deviation = count * share, math.sqrt(count * share * (1 - share))
    reach = 12 * deviation + 30
    first = max(0, math.floor(mean - reach))
    last = min(count, math.ceil(mean + reach))
    log_first = (
        math.lgamma(count + 1) - math.lgamma(first + 1) - math.lgamma(count - first + 1)
    )
    log_first += first * math.log(share) + (count - first) * math.log1p(-share)
    successes = np.arange(first, last)
    log_odds = math.log(share) - math.log1p(-share)
    steps = np.log((count - successes) / (successes + 1)) + log_odds
    return first, np.exp(log_first + np.append(0.0, np.cumsum(steps)))
