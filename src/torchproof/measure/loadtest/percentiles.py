"""Percentiles with intervals, and whether an objective is met, by binomial bounds.

Of `n` requests, the number below the true percentile is binomial. So two order
statistics bound it, each side with 99 percent confidence. A percentile is given only if
`n` requests suffice for its upper bound: 459 for p99. Requests that were not answered
count as infinitely slow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchproof.records import ObjectiveVerdict, Percentile

PERCENTS = (50.0, 90.0, 99.0, 99.9)
RISK = 0.01  # that a bound is wrong, on each side
_MOST_NEEDED = 10_000_000


@dataclass(frozen=True)
class Judgement:
    """Whether an objective is met; if undecided, the requests that would tell."""

    verdict: ObjectiveVerdict
    needed: int | None = None


def requests_needed(percent: float) -> int:
    """The fewest requests of which one exceeds the percentile, almost surely."""
    return math.ceil(math.log(RISK) / math.log(percent / 100))


def percentiles(values_ms: Sequence[float]) -> tuple[Percentile, ...]:
    ordered = sorted(values_ms)
    return tuple(_percentile(ordered, percent) for percent in PERCENTS)


def percentile(values_ms: Iterable[float], percent: float) -> Percentile:
    return _percentile(sorted(values_ms), percent)


def _percentile(ordered: Sequence[float], percent: float) -> Percentile:
    count, share = len(ordered), percent / 100
    needed = requests_needed(percent)
    if count < needed:
        return Percentile(percent, needed=needed)
    # The smallest value that this share of the requests does not exceed.
    rank = max(1, math.ceil(share * count - 1e-9))
    low = _quantile(count, share, RISK)
    high = _quantile(count, share, 1 - RISK) + 1
    return Percentile(
        percent,
        value_ms=_finite(ordered[rank - 1]),
        low_ms=_finite(ordered[low - 1]) if low else None,
        high_ms=_finite(ordered[high - 1]) if high <= count else None,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def judge(over: int, count: int, percent: float) -> Judgement:
    """Whether at most `100 - percent` percent of requests exceed a limit.

    `over` of `count` requests did. The objective is met or missed if the opposite
    would give such a count with a probability of at most `RISK`.
    """
    allowed = 1 - percent / 100
    if decided := _decided(over, count, allowed):
        return Judgement(decided)
    return Judgement("undecided", _needed_to_decide(over, count, percent))


def _decided(over: int, count: int, allowed: float) -> ObjectiveVerdict | None:
    if count and at_most(over, count, allowed) <= RISK:
        return "met"
    if over and 1 - at_most(over - 1, count, allowed) <= RISK:
        return "missed"
    return None


def _needed_to_decide(over: int, count: int, percent: float) -> int | None:
    """The requests that decide, if the share of slow ones stays; None: too close."""
    allowed = 1 - percent / 100
    share = over / count if count else 0.0
    low = high = max(count, requests_needed(percent))
    while not _decided(math.ceil(share * high), high, allowed):
        low, high = high, high * 2
        if high > _MOST_NEEDED:
            return None
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        if _decided(math.ceil(share * middle), middle, allowed):
            high = middle
        else:
            low = middle
    return high


# -- the binomial distribution ---------------------------------------------------------


def at_most(successes: int, count: int, share: float) -> float:
    """The probability of at most so many successes."""
    if successes < 0:
        return 0.0
    if successes >= count:
        return 1.0
    first, masses = _masses(count, share)
    return min(1.0, math.fsum(masses[: max(0, successes - first + 1)]))


def _quantile(count: int, share: float, probability: float) -> int:
    """The largest k with P(fewer than k successes) <= probability."""
    first, masses = _masses(count, share)
    total, k = 0.0, first
    for mass in masses:
        total += mass
        if total > probability:
            break
        k += 1
    return k


def _masses(count: int, share: float) -> tuple[int, list[float]]:
    """The first number of successes that matters, and the probabilities from there."""
    mean, deviation = count * share, math.sqrt(count * share * (1 - share))
    reach = 12 * deviation + 30
    first = max(0, math.floor(mean - reach))
    last = min(count, math.ceil(mean + reach))
    log_odds = math.log(share) - math.log1p(-share)
    log_mass = (
        math.lgamma(count + 1) - math.lgamma(first + 1) - math.lgamma(count - first + 1)
    )
    log_mass += first * math.log(share) + (count - first) * math.log1p(-share)
    masses = []
    for successes in range(first, last + 1):
        masses.append(math.exp(log_mass))
        if successes < count:
            ratio = (count - successes) / (successes + 1)
            log_mass += math.log(ratio) + log_odds
    return first, masses
