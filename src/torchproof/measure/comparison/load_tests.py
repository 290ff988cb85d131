"""Compares two load tests, strategy by strategy: p50, p99, goodput, first answer.

A percentile differs if its intervals in A and B do not overlap. Goodput differs if the
intervals of the share of requests within the objective do not. Both count dependent
requests for what they are worth. As elsewhere, a difference below the threshold is no
regression, and eager is the control.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from torchproof.measure.comparison import metrics
from torchproof.measure.comparison.metrics import Metric, Row, Thresholds
from torchproof.measure.loadtest.options import LoadOptions
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

MEDIAN, TAIL = "p50", "p99"
_PERCENTS = {MEDIAN: 50.0, TAIL: 99.0}
_DEVIATIONS = 2.33  # each bound is wrong in 1 of 100 tests
_EAGER = "eager"
_FEW = "too few independent requests for an interval"


def assert_same_load(a: LoadTest, b: LoadTest) -> None:
    """Raises `UserError` if the requests of two tests came at different times."""
    loads = [load_of(test) for test in (a, b)]
    if loads[0] != loads[1]:
        raise UserError(
            f"different loads cannot be compared: {loads[0]} in A, {loads[1]} in B"
        )


def assert_comparable(baseline: Run, options: LoadOptions) -> None:
    """Raises `UserError` if a run is no baseline of a test with these options."""
    if baseline.load_test is None:
        raise UserError(
            f"--baseline {baseline.id} is a run of {baseline.verb}: give a run of"
            " loadtest"
        )
    planned = LoadTest(
        options.rate,
        options.arrivals,
        options.seed,
        planned=0,
        text=options.text.load if options.text else None,
    )
    assert_same_load(baseline.load_test, planned)


def load_of(test: LoadTest) -> str:
    """`50 requests/s, poisson, seed 0`."""
    if test.rate is None:  # the file has the times, so there is nothing to draw
        text = f"requests of {test.arrivals}"
    else:
        text = f"{test.rate:g} requests/s, {test.arrivals}, seed {test.seed}"
    return f"{text}, {test.text.lengths}" if test.text else text


def rows(a: LoadTest, b: LoadTest, limits: Thresholds) -> list[Row]:
    """One for each strategy of both tests; raises `UserError` if there is none."""
    assert_same_load(a, b)
    before, after = _by_name(a), _by_name(b)
    shared = [name for name in before if name in after]
    if not shared:
        names = [", ".join(each) or "no strategy" for each in (before, after)]
        raise UserError(f"nothing to compare: A has {names[0]}, B has {names[1]}")
    objective = b.objective if a.objective == b.objective else None
    workers = a.workers, b.workers
    compared = {
        name: _row((before[name], after[name]), objective, workers, limits)
        for name in shared
    }
    if _EAGER not in compared or len(compared) == 1:
        return list(compared.values())
    eager = compared.pop(_EAGER)
    judged = [_beyond(row, eager, limits) for row in compared.values()]
    return [eager.as_control(), *judged]


def control(a: LoadTest, b: LoadTest, limits: Thresholds) -> Metric | None:
    """The median of eager, if it was served beside other strategies."""
    before, after = _by_name(a), _by_name(b)
    if _EAGER not in before or len(before.keys() & after.keys()) < 2:
        return None
    if _EAGER not in after:
        return None
    return _percentile(before[_EAGER], after[_EAGER], MEDIAN, limits.speed)


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
    yield from only_in(_by_name(a), _by_name(b))


def only_in(a: Iterable[str], b: Iterable[str]) -> Iterator[str]:
    """The names that one of two runs has alone."""
    for one, other, where in ((a, b, "A"), (b, a, "B")):
        if alone := [name for name in one if name not in other]:
            yield f"only in {where}: {', '.join(alone)}"


def _by_name(test: LoadTest) -> dict[str, LoadResult]:
    return {result.strategy: result for result in test.results}


# -- one strategy ----------------------------------------------------------------------


def _row(
    pair: tuple[LoadResult, LoadResult],
    objective: LatencyObjective | None,
    workers: tuple[int, int],
    limits: Thresholds,
) -> Row:
    """A strategy in A and in B."""
    a, b = pair
    was, is_ = _failure(a), _failure(b)
    if was and is_:
        return Row(b.strategy, note=f"failed in both runs; in B it {is_}")
    if was or is_:
        note = f"works in B; in A it {was}" if was else ""
        return Row(b.strategy, broken=is_, note=note)
    first = Metric("first answer", a.first_answer_after_s, b.first_answer_after_s, "s")
    compared = (
        _percentile(a, b, MEDIAN, limits.speed),
        _percentile(a, b, TAIL, limits.tail),
        _goodput(pair, objective, workers, limits.speed),
        metrics.single(first, limits.compile, least=metrics.LEAST_COMPILE_S),
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


def _goodput(
    pair: tuple[LoadResult, LoadResult],
    objective: LatencyObjective | None,
    workers: tuple[int, int],
    percent: float,
) -> Metric:
    """More is better, so the ratio is that of B to A."""
    a, b = (result.goodput_rate for result in pair)
    metric = Metric("goodput", a, b, "per_s")
    if a is None or b is None or objective is None:
        return replace(metric, why="no objective that both runs share")
    old, new = (
        _within(result, objective, count)
        for result, count in zip(pair, workers, strict=True)
    )
    if not (a and b and old[2] and new[2]):
        lost = old[0] > new[1]
        verdict = "none left" if lost else metrics.NOT_SIGNIFICANT
        return replace(metric, verdict=verdict, regression=lost)
    # The interval of the share, in the unit of the rate.
    scale = (b / new[2]) / (a / old[2])
    low, high = (scale * new[n] / old[1 - n] if old[1 - n] else None for n in (0, 1))
    words = ("more", "less")
    return metrics.judged(metric, b / a, (low, high), percent, words=words, few=_FEW)


def _within(
    result: LoadResult, objective: LatencyObjective, workers: int
) -> tuple[float, float, float]:
    """The share of requests within the limit: lower and upper bound, and value."""
    values = metric_ms(result.requests, objective.metric)
    within = [value <= objective.limit_ms for value in values]
    worth = len(within) / design_effect(within, cycle_starts(result.requests, workers))
    share = sum(within) / len(within)
    return (*_score_interval(share, worth), share)


def _score_interval(share: float, count: float) -> tuple[float, float]:
    """Wilson's interval of a share of so many independent requests."""
    z = _DEVIATIONS**2 / count
    middle = share + z / 2
    reach = _DEVIATIONS * math.sqrt((share * (1 - share) + z / 4) / count)
    return max(0.0, (middle - reach) / (1 + z)), min(1.0, (middle + reach) / (1 + z))


def _percentile(a: LoadResult, b: LoadResult, name: str, percent: float) -> Metric:
    before, after = _at(a, _PERCENTS[name]), _at(b, _PERCENTS[name])
    metric = Metric(name, before.value_ms, after.value_ms, "ms")
    if not before.value_ms or not after.value_ms:
        return replace(metric, why="not known in both: too few requests were answered")
    ratio = before.value_ms / after.value_ms
    low = _divided(before.low_ms, after.high_ms)
    high = _divided(before.high_ms, after.low_ms)
    return metrics.judged(metric, ratio, (low, high), percent, few=_FEW)


def _at(result: LoadResult, percent: float) -> Percentile:
    rows = (row for row in result.latency if row.percent == percent)
    return next(rows, Percentile(percent))


def _divided(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def _beyond(row: Row, eager: Row, limits: Thresholds) -> Row:
    """Drops changes of latency that are no larger than eager's."""
    least = {MEDIAN: limits.speed, TAIL: limits.tail}
    controls = {m.name: m for m in eager.metrics if m.name in least and m.significant}
    judged = (
        metrics.beyond(m, controls[m.name], least[m.name], controls[m.name].verdict)
        if m.name in controls
        else m
        for m in row.metrics
    )
    return replace(row, metrics=tuple(judged))
