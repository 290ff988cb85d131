"""Percentiles and verdicts against brute force."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from torchproof.measure.loadtest.percentiles import (
    at_most,
    cycle_starts,
    design_effect,
    fewest_missed,
    judge,
    percentile,
    percentiles,
    requests_needed,
)
from torchproof.records import Requests


def binomial(k: int, n: int, p: float) -> float:
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


@pytest.mark.parametrize(
    ("percent", "needed"), [(50, 7), (90, 44), (99, 459), (99.9, 4603)]
)
def test_a_percentile_needs_enough_requests(percent: float, needed: int) -> None:
    assert requests_needed(percent) == needed
    values = [float(number) for number in range(needed)]
    few = percentile(values[:-1], percent)
    assert (few.value_ms, few.low_ms, few.high_ms) == (None, None, None)
    assert few.needed == needed
    enough = percentile(values, percent)
    assert enough.needed is None
    assert enough.low_ms <= enough.value_ms <= enough.high_ms == values[-1]


@pytest.mark.parametrize(
    ("percent", "count"),
    [(50.0, 50), (90.0, 50), (90.0, 459), (99.0, 700), (1.0, 1000), (0.1, 40)],
)
def test_bounds_against_brute_force(percent: float, count: int) -> None:
    share = percent / 100
    below = [0.0]  # below[k]: probability that fewer than k are below the percentile
    for k in range(count + 1):
        below.append(below[-1] + binomial(k, count, share))
    low = max(k for k in range(count + 1) if below[k] <= 0.01)
    high = min(k for k in range(1, count + 1) if below[k] >= 0.99)
    for k in (0, 1, count // 2, count - 1):
        assert at_most(k, count, share) == pytest.approx(below[k + 1], abs=1e-9)
    values = [float(number) for number in range(1, count + 1)]
    random.Random(0).shuffle(values)
    result = percentile(values, percent)
    assert (result.low_ms, result.high_ms) == (low or None, high)
    assert result.value_ms == math.ceil(share * count)


def test_requests_without_an_answer_are_infinitely_slow() -> None:
    values = [1.0] * 450 + [math.inf] * 50
    p50, p90, p99, p999 = percentiles(values)
    assert (p50.value_ms, p90.value_ms) == (1.0, 1.0)
    assert p90.high_ms is None
    assert (p99.value_ms, p99.needed) == (None, None)
    assert (p999.value_ms, p999.needed) == (None, 4603)


# -- objectives ------------------------------------------------------------------------


def over(hits: int, count: int) -> list[bool]:
    return [number < hits for number in range(count)]


@pytest.mark.parametrize(
    ("hits", "count", "percent", "verdict"),
    [
        (0, 459, 99, "met"),
        (0, 458, 99, "undecided"),
        (1, 459, 99, "undecided"),
        (20, 459, 99, "missed"),
        (44, 44, 90, "missed"),
        (0, 0, 99, "undecided"),
    ],
)
def test_verdicts(hits: int, count: int, percent: int, verdict: str) -> None:
    assert judge(over(hits, count), percent).verdict == verdict


def test_an_undecided_verdict_says_how_many_requests_decide() -> None:
    assert judge(over(0, 10), 99).needed == 459
    few = judge(over(2, 400), 99)  # half the allowed share
    assert few.verdict == "undecided"
    assert judge(over(math.ceil(few.needed / 200), few.needed), 99).verdict == "met"
    many = judge(over(3, 200), 99)
    assert judge(over(math.ceil(many.needed * 0.015), many.needed), 99).verdict != (
        "undecided"
    )
    assert judge(over(4, 400), 99).needed is None  # exactly the allowed share


@pytest.mark.parametrize("count", [10, 459, 2000])
def test_the_fewest_slow_requests_that_miss(count: int) -> None:
    fewest = fewest_missed(count, 99)
    assert judge(over(fewest, count), 99).verdict == "missed"
    assert judge(over(fewest - 1, count), 99).verdict != "missed"


def test_one_stall_with_many_victims_does_not_decide() -> None:
    """One stall with ten victims proves less than ten slow requests by themselves."""
    count = 2400
    alone = [number % 240 == 0 for number in range(count)]
    together = [number < 10 for number in range(count)]
    starts = [0, *range(10, count)]
    assert judge(alone, 99, range(count)).verdict == "met"
    assert judge(together, 99, starts).verdict == "undecided"
    assert judge(together, 99).verdict == "met"


def drawn(share: float, burst: int, seed: int, count: int = 1000) -> list[bool]:
    """Requests of which this share is late, in bursts of this length."""
    random_ = random.Random(f"{share} {burst} {seed}")
    begins = share / burst / (1 - share)  # of a burst, at each request in time
    late: list[bool] = []
    while len(late) < count:
        late += [True] * burst if random_.random() < begins else [False]
    return late[:count]


@pytest.mark.parametrize(
    ("share", "burst", "queue", "runs", "missed"),
    [
        (0.005, 25, False, 200, range(7)),  # 1 percent, and three deviations
        (0.01, 25, True, 200, range(7)),
        (0.04, 1, True, 50, range(45, 51)),
        (0.3, 25, True, 50, range(45, 51)),
    ],
)
def test_an_objective_is_missed_by_many_bursts_and_not_by_one(
    share: float, burst: int, queue: bool, runs: int, missed: range
) -> None:
    """With `queue`, the requests of a burst wait for each other."""
    found = 0
    for seed in range(runs):
        late = drawn(share, burst, seed)
        behind = [False, *(late[:-1] if queue else [False] * (len(late) - 1))]
        alone = [number for number, waits in enumerate(behind) if not waits]
        found += judge(late, 99, alone).verdict == "missed"
    assert found in missed


# -- dependence ------------------------------------------------------------------------


def test_cycles_begin_where_a_worker_is_idle() -> None:
    requests = Requests(
        arrival_s=(0.0, 0.1, 0.2, 1.0, 1.1),
        begin_s=(0.0, 0.5, 0.6, 1.0, 1.2),
        end_s=(0.5, 0.6, 0.7, 1.2, 1.3),
    )
    assert cycle_starts(requests) == [0, 3]
    assert cycle_starts(requests, workers=2) == [0, 1, 3, 4]
    # A request that never ends keeps its worker busy, unless it was rejected.
    endless = Requests((0.0, 1.0, 2.0), (0.0, None, 2.0), (0.5, None, 2.5))
    assert cycle_starts(endless) == [0, 1]
    assert cycle_starts(replace(endless, rejected=(1,))) == [0, 1, 2]


@pytest.mark.parametrize(("group", "effect"), [(1, 1), (5, 5)])
def test_requests_in_groups_are_worth_one_for_each_group(
    group: int, effect: float
) -> None:
    drawn = random.Random(2)
    groups = [drawn.random() < 0.1 for _ in range(5000)]
    hits = [late for late in groups for _ in range(group)]
    starts = range(0, len(hits), group)
    assert design_effect(hits, starts) == pytest.approx(effect, rel=0.02)
    assert design_effect([False] * len(hits), starts) == 1.0
