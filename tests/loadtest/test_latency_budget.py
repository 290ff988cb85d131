"""Latency budgets: which limits a load test exceeds, and which marks are refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import load_runs
import pytest

from torchproof.checking import LatencyBudget
from torchproof.records import LoadResult, UserError


def budget(**arguments: Any) -> LatencyBudget:
    return LatencyBudget.of([((), {"rate": 50, **arguments})])


def test_limits_are_judged_one_by_one() -> None:
    run = load_runs.run([load_runs.clean()])
    assert budget(p50_ms=50).broken_by(run) is None
    message = budget(p50_ms=50, p99_ms=3).broken_by(run)
    assert message is not None
    assert message.startswith("latency_budget(p99_ms=3): p99 is ")


def test_two_stalls_do_not_break_a_budget() -> None:
    run = load_runs.run([load_runs.recompiling()])
    assert budget(p99_ms=50).broken_by(run) is None


def test_a_limit_that_is_kept_or_undecided_is_not_exceeded() -> None:
    result = load_runs.clean()
    p99 = result.latency[2].value_ms
    assert p99 is not None
    run = load_runs.run([result])
    assert budget(p99_ms=p99 * 0.99).broken_by(run) is None  # within the interval
    assert budget(p99_ms=p99 * 2).broken_by(run) is None
    assert budget(p99_ms=p99 / 2).broken_by(run) is not None


def test_failures_break_every_budget() -> None:
    failed = dataclasses.replace(
        load_runs.clean(), failed=2, errors={"ValueError: odd": 2}
    )
    message = budget(p99_ms=1e6).broken_by(load_runs.run([failed]))
    assert message is not None and "2 of 1500" in message and "odd" in message
    crashed = LoadResult("full", error="out of memory")
    assert "out of memory" in str(
        budget(p99_ms=1e6).broken_by(load_runs.run([crashed]))
    )


def test_the_load_is_that_of_the_mark() -> None:
    options = budget(p99_ms=50, p50_ms=10, seed=3).options()
    assert (options.rate, options.requests, options.seed) == (50, 459, 3)
    assert not options.cold and options.objective is not None
    assert options.objective.percent == 99 and options.objective.limit_ms == 50
    assert budget(p50_ms=10).options().requests == 7
    assert budget(p50_ms=10, requests=20).options(requests=30).requests == 30


def test_a_nearer_mark_overrides_what_it_names() -> None:
    far, near = {"p99_ms": 50, "rate": 20}, {"p99_ms": None, "p50_ms": 5}
    combined = LatencyBudget.of([((), far), ((), near)])
    assert combined.limits == {"p50_ms": 5} and combined.load == {"rate": 20}


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({}, "p99_ms"),
        ({"p99": 50}, "p99_ms"),
        ({"p99_ms": 0}, "p99_ms=0"),
        ({"p99_ms": "50ms"}, "50ms"),
        ({"p99_ms": 50, "rate": 0}, "rate=0"),
        ({"p99_ms": 50, "rate": True}, "rate=True"),
        ({"p99_ms": 50, "requests": 100}, "459"),
        ({"p99_ms": 50, "requests": 500.5}, "500.5"),
        ({"p99_ms": 50, "workers": 1.5}, "1.5"),
        ({"p99_ms": 50, "arrivals": "gamma:x"}, "gamma"),
    ],
)
def test_wrong_marks_are_refused(arguments: dict[str, Any], pattern: str) -> None:
    with pytest.raises(UserError, match=pattern):
        budget(**arguments)
    with pytest.raises(UserError, match="keyword"):
        LatencyBudget.of([((50,), {})])
