"""Finds the highest rate that meets an objective, by bisection.

Each trial has enough requests to tell, and lasts long enough for a queue to grow. A
trial that stays undecided is repeated with four times as many requests, and then counts
as not met, as does one whose queue grows until the end. So the rate that is reported is
one that was shown to meet the objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from torchproof.measure.loadtest.percentiles import (
    cycle_starts,
    judge,
    percentile,
)
from torchproof.measure.loadtest.results import metric_ms
from torchproof.records import LatencyObjective, LoadResult, RateTrial
from torchproof.records.load_options import MOST_REQUESTS, requests_needed

PRECISION = 1.05  # the search ends when the bounds are this close
_MOST_TRIALS = 16
_MOST_HALVINGS = 6  # trials of low rates take long
_STEP = 2.0
# A rate with half the allowed share of slow requests is decided by this multiple of the
# requests that suffice without any.
_FIRST, _AGAIN = 4, 4
# A rate 5 percent above capacity delays requests by 5 percent of the time that passed:
# a trial has to last until that exceeds the limit for many of them.
_LEAST_LIMITS = 40
_LEAST_S = 3.0


Measure = Callable[[float, int], LoadResult]  # by rate and number of requests


class RateSearch:
    """The trials so far, and the bounds: `highest` was met, `lowest_missed` not."""

    def __init__(
        self, objective: LatencyObjective, measure: Measure, *, workers: int = 1
    ) -> None:
        self._objective = objective
        self._measure = measure
        self._workers = workers
        self._requests = _FIRST * requests_needed(objective.percent)
        self.trials: tuple[RateTrial, ...] = ()
        self.highest: float | None = None
        self.lowest_missed = math.inf
        self.is_hopeless = False  # the calls alone take longer than the limit

    def run(self, rate: float) -> None:
        """Starts with a rate, doubles or halves it, and then bisects."""
        first = rate
        while len(self.trials) < _MOST_TRIALS:
            if self._meets(rate):
                self.highest = rate
            else:
                self.lowest_missed = rate
            if self.highest is None:
                if self.is_hopeless or rate <= first / _STEP**_MOST_HALVINGS:
                    return
                rate /= _STEP
            elif math.isinf(self.lowest_missed):
                rate *= _STEP
            elif self.lowest_missed / self.highest <= PRECISION:
                return
            else:
                rate = math.sqrt(self.highest * self.lowest_missed)

    def _meets(self, rate: float) -> bool:
        seconds = max(_LEAST_S, _LEAST_LIMITS * self._objective.limit_ms / 1e3)
        requests = min(max(self._requests, math.ceil(rate * seconds)), MOST_REQUESTS)
        trial = self._try(rate, requests)
        if trial.verdict == "undecided":
            trial = self._try(rate, min(requests * _AGAIN, MOST_REQUESTS))
        return trial.verdict == "met" and trial.kept_up is not False

    def _try(self, rate: float, requests: int) -> RateTrial:
        result = self._measure(rate, requests)
        assert result.verdict is not None
        values = metric_ms(result.requests, self._objective.metric)
        starts = cycle_starts(result.requests, self._workers)
        ends = [end for end in result.requests.end_s if end is not None]
        trial = RateTrial(
            rate,
            requests=len(values),
            verdict=result.verdict,
            percentile=percentile(values, self._objective.percent, starts),
            kept_up=result.kept_up,
            seconds=max(ends, default=None),
            tokens_per_s=result.generation.tokens_per_s if result.generation else None,
        )
        self.trials = (*self.trials, trial)
        self.is_hopeless = self._is_too_slow(result)
        return trial

    def _is_too_slow(self, result: LoadResult) -> bool:
        """Whether requests that never wait would miss the objective as well."""
        if self._objective.metric != "latency":
            return False
        limit_ms, percent = self._objective.limit_ms, self._objective.percent
        service_ms = metric_ms(result.requests, "service")
        slow = service_ms[np.isfinite(service_ms)] > limit_ms
        return judge(slow, percent, range(len(slow))).verdict == "missed"
