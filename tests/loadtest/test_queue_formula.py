"""Waiting times agree with the formulas for a queue with constant service time."""

from __future__ import annotations

import bisect
import math
from pathlib import Path

import pytest
from virtual_server import VirtualServer

from torchproof.measure.loadtest import LoadOptions
from torchproof.measure.loadtest.percentiles import cycle_starts, percentiles
from torchproof.measure.loadtest.results import metric_ms
from torchproof.measure.loadtest.timetable import draw
from torchproof.records import Percentile

SERVICE_S = 0.01


def waiting_at_most(seconds: float, utilisation: float) -> float:
    """The share of requests of an M/D/1 queue that wait at most so long (Erlang)."""
    rate = utilisation / SERVICE_S
    total = 0.0
    for k in range(int(seconds / SERVICE_S) + 1):
        work = rate * (seconds - k * SERVICE_S)
        total += (-work) ** k / math.factorial(k) * math.exp(work)
    return (1 - utilisation) * total


def latency_ms(percent: float, utilisation: float) -> float:
    """The percentile of the time from arrival to answer."""
    waits = [SERVICE_S * n / 1000 for n in range(30_000)]
    share = percent / 100
    at = bisect.bisect_left(waits, share, key=lambda s: waiting_at_most(s, utilisation))
    return (waits[at] + SERVICE_S) * 1e3


def percentiles_of(
    folder: Path, utilisation: float, seed: int, requests: int
) -> tuple[Percentile, ...]:
    options = LoadOptions(rate=utilisation / SERVICE_S, requests=requests, seed=seed)
    server = VirtualServer(folder, lambda call, count: SERVICE_S)
    served = server.serve(draw(options, [1.0]))
    return percentiles(metric_ms(served, "latency"), cycle_starts(served))


@pytest.mark.parametrize("utilisation", [0.3, 0.8])
def test_percentiles_agree_with_the_formula(tmp_path: Path, utilisation: float) -> None:
    for each in percentiles_of(tmp_path, utilisation, seed=4, requests=20_000)[:3]:
        expected = latency_ms(each.percent, utilisation)
        # A constant time of service makes ties: the bound itself is a value.
        assert each.low_ms - 0.01 <= expected <= each.high_ms + 0.01, each


def test_intervals_hold_the_truth_as_often_as_they_say(tmp_path: Path) -> None:
    """As if requests were independent, they would miss it far more often."""
    truth = latency_ms(90, 0.8)
    rows = [percentiles_of(tmp_path, 0.8, seed, 3000)[1] for seed in range(6)]
    bounded = [row for row in rows if row.high_ms is not None]
    missed = [row for row in rows if row.low_ms > truth]
    missed += [row for row in bounded if row.high_ms < truth]
    assert len(missed) <= 1 and len(bounded) >= 3
