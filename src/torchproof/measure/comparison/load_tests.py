"""Compares two load tests, strategy by strategy: p50, p99, goodput, first answer.

A percentile differs if its intervals in A and B do not overlap. Goodput differs if the
intervals of the share of requests within the objective do not. Both count dependent
requests for what they are worth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torchproof.measure.comparison import metrics
from torchproof.measure.comparison.metrics import Metric, Row, Thresholds
from torchproof.measure.loadtest.percentiles import cycle_starts, design_effect
from torchproof.measure.loadtest.results import metric_ms
from torchproof.records import (
    LatencyObjective,
    LoadResult,
    LoadTest,
    Percentile,
    Run,
    UserError,
)
from torchproof.records.load_options import LoadOptions

_DEVIATIONS = 2.33  # each bound is wrong in 1 of 100 tests
_FEW = "too few independent requests for an interval"
Pair = tuple[LoadResult, LoadResult]


def comparable(a: Run, b: Run) -> tuple[LoadTest, LoadTest]:
    """The tests of two runs; raises `UserError` if their requests differ."""
    if a.load_test is None or b.load_test is None:
        raise UserError(
            f"nothing to compare: A is a run of {a.verb}, B of {b.verb}; a load test is"
            " compared with another load test"
        )
    _assert_same_load(a.load_test, b.load_test)
    return a.load_test, b.load_test


def assert_comparable(baseline: Run, options: LoadOptions) -> None:
    """Raises `UserError` if a run is no baseline of a test with these options."""
    if baseline.load_test is None:
        raise UserError(
            f"--baseline {baseline.id} is a run of {baseline.verb}: give a run of"
            " loadtest"
        )
    _assert_same_load(baseline.load_test, options.asked())


def _assert_same_load(a: LoadTest, b: LoadTest) -> None:
    loads = [load_of(test) for test in (a, b)]
    if loads[0] != loads[1]:
        raise UserError(
            f"different loads cannot be compared: {loads[0]} in A, {loads[1]} in B"
        )


def load_of(test: LoadTest) -> str:
    """`50 requests/s, poisson, seed 0`."""
    if test.rate is None:  # the file has the times, so there is nothing to draw
        text = f"requests of {test.arrivals}"
    else:
        text = f"{test.rate:g} requests/s, {test.arrivals}, seed {test.seed}"
    return f"{text}, {test.text.lengths}" if test.text else text


def notes(a: LoadTest, b: LoadTest) -> Iterator[str]:
    """Differences that the user may have made on purpose."""
    settings: dict[str, tuple[Any, ...]] = {
        "workers": (a.workers, b.workers),
        "temperature": tuple(t.text.temperature if t.text else None for t in (a, b)),
        "queue limit": tuple(t.text.queue_limit if t.text else None for t in (a, b)),
        "batch window, ms": (a.batch_window_ms, b.batch_window_ms),
        "largest batch": (a.max_batch, b.max_batch),
        "requests": (a.planned, b.planned),
    }
    for name, (was, is_) in settings.items():
        if was != is_:
            was, is_ = ("-" if value is None else value for value in (was, is_))
            yield f"{name}: {was} in A, {is_} in B"
    if a.calls != b.calls:
        yield "the calls of the target differ, so B answered other requests"
    if a.objective != b.objective:
        yield "the objectives differ, so goodput is not compared"


def row(pair: Pair, tests: tuple[LoadTest, LoadTest], limits: Thresholds) -> Row:
    """A strategy in A and in B."""
    a, b = pair
    was, is_ = _failure(a), _failure(b)
    if was and is_:
        return Row(b.strategy, note=f"failed in both runs; in B it {is_}")
    if was or is_:
        note = f"works in B; in A it {was}" if was else ""
        return Row(b.strategy, broken=is_, note=note)
    answered = a.first_answer_after_s, b.first_answer_after_s
    compared = (
        _percentile("p50", _at(a, 50.0), _at(b, 50.0), limits),
        _percentile("p99", _at(a, 99.0), _at(b, 99.0), limits),
        _goodput(pair, tests, limits),
        metrics.single("first answer", *answered, limits),
        metrics.count("failed", a.failed or 0, b.failed or 0),
    )
    grown = a.kept_up is True and b.kept_up is False
    broken = "could not keep up with the requests" if grown else ""
    return Row(b.strategy, compared, broken=broken)


def _failure(result: LoadResult) -> str:
    """Why a strategy has no numbers; empty if it has."""
    if result.error:
        return f"failed: {result.error}"
    if result.ending == "skipped":
        return f"was skipped: {'; '.join(result.notes) or 'no reason given'}"
    return "" if result.answered else "answered no request"


def _at(result: LoadResult, percent: float) -> Percentile:
    rows = (row for row in result.latency if row.percent == percent)
    return next(rows, Percentile(percent))


def _percentile(name: str, a: Percentile, b: Percentile, limits: Thresholds) -> Metric:
    metric = metrics.metric(name, a.value_ms, b.value_ms)
    if not a.value_ms or not b.value_ms:
        return replace(metric, why="not known in both: too few requests were answered")
    bounds = _divided(a.low_ms, b.high_ms), _divided(a.high_ms, b.low_ms)
    return metrics.judged(metric, bounds, limits, _FEW)


def _divided(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def _goodput(
    pair: Pair, tests: tuple[LoadTest, LoadTest], limits: Thresholds
) -> Metric:
    """The interval is that of the share within the limit, in the unit of the rate."""
    a, b = (result.goodput_rate for result in pair)
    metric, objective = metrics.metric("goodput", a, b), tests[0].objective
    if a is None or b is None or objective is None or objective != tests[1].objective:
        return replace(metric, why="no objective that both runs share")
    (a_low, a_high), (b_low, b_high) = (
        _within(result, objective, test.workers)
        for result, test in zip(pair, tests, strict=True)
    )
    if not (a and b):
        if a_low <= b_high:
            return metric.insignificant("")
        lost = metrics.Change.SIGNIFICANT
        return replace(metric, change=lost, words="none left", regression=True)
    bounds = _divided(b_low * b, a_high * a), _divided(b_high * b, a_low * a)
    return metrics.judged(metric, bounds, limits, _FEW)


def _within(
    result: LoadResult, objective: LatencyObjective, workers: int
) -> tuple[float, float]:
    """Wilson's interval of the share of requests within the limit.

    The bounds are relative to the share, unless it is 0.
    """
    within = metric_ms(result.requests, objective.metric) <= objective.limit_ms
    starts = cycle_starts(result.requests, workers)
    count = len(within) / design_effect(within, starts)
    share = int(within.sum()) / len(within)
    z = _DEVIATIONS**2 / count
    middle = share + z / 2
    reach = _DEVIATIONS * math.sqrt((share * (1 - share) + z / 4) / count)
    low = max(0.0, (middle - reach) / (1 + z))
    high = min(1.0, (middle + reach) / (1 + z))
    return low / (share or 1.0), high / (share or 1.0)
