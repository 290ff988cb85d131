"""Finds the highest rate that meets an objective, by bisection.

Each trial has enough requests to tell. A trial that stays undecided is repeated with
four times as many requests, and then counts as not met: the rate that is reported is
one that was shown to meet the objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torchproof.measure.loadtest.percentiles import percentile, requests_needed
from torchproof.measure.loadtest.results import metric_ms
from torchproof.records import LatencyObjective, LoadResult, RateTrial

PRECISION = 1.05  # the search ends when the bounds are this close
_MOST_TRIALS = 16
_STEP = 2.0
# A rate with half the allowed share of slow requests is decided by this multiple of the
# requests that suffice without any.
_FIRST, _AGAIN = 4, 4


Measure = Callable[[float, int], LoadResult]  # by rate and number of requests


class RateSearch:
    """The trials so far, and the bounds: `highest` was met, `lowest_missed` not."""

    def __init__(
        self,
        objective: LatencyObjective,
        measure: Measure,
    ) -> None:
        self._objective = objective
        self._measure = measure
        self._requests = _FIRST * requests_needed(objective.percent)
        self.trials: tuple[RateTrial, ...] = ()
        self.highest: float | None = None
        self.lowest_missed = math.inf

    def run(self, rate: float) -> None:
        """Starts with a rate, doubles or halves it, and then bisects."""
        while len(self.trials) < _MOST_TRIALS:
            if self._meets(rate):
                self.highest = rate
            else:
                self.lowest_missed = rate
            if self.highest is None:
                rate /= _STEP
            elif math.isinf(self.lowest_missed):
                rate *= _STEP
            elif self.lowest_missed / self.highest <= PRECISION:
                return
            else:
                rate = math.sqrt(self.highest * self.lowest_missed)

    def _meets(self, rate: float) -> bool:
        requests = self._requests
        trial = self._try(rate, requests)
        if trial.verdict == "undecided":
            trial = self._try(rate, requests * _AGAIN)
        return trial.verdict == "met"

    def _try(self, rate: float, requests: int) -> RateTrial:
        result = self._measure(rate, requests)
        assert result.verdict is not None
        values = metric_ms(result.requests, self._objective.metric)
        ends = [end for end in result.requests.end_s if end is not None]
        trial = RateTrial(
            rate,
            requests=requests,
            verdict=result.verdict,
            percentile=percentile(values, self._objective.percent),
            kept_up=result.kept_up,
            seconds=max(ends, default=None),
        )
        self.trials = (*self.trials, trial)
        return trial
