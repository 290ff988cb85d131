"""Two load tests compared: what is worse, what is noise, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import bench_runs
import load_runs
import pytest

from torchproof.measure import Comparison, Metric, compare
from torchproof.records import LoadResult, Run, TextLoad, UserError


def run(*results: LoadResult, **test: Any) -> Run:
    return load_runs.run(results, test=test)


def metric(comparison: Comparison, name: str, strategy: str = "full") -> Metric:
    (row,) = (row for row in comparison.rows if row.name == strategy)
    (found,) = (each for each in row.metrics if each.name == name)
    return found


def shifted(result: LoadResult, seed: int) -> LoadResult:
    """The same strategy on another day: the same requests, other service times."""
    service = load_runs.services(load_runs.COUNT, 0.004, seed=seed)
    requests = load_runs.queued(load_runs.arrivals(load_runs.COUNT), service)
    return load_runs.result(result.strategy, requests, tail=result.tail)


def test_a_run_does_not_differ_from_itself() -> None:
    same = compare(run(load_runs.clean()), run(load_runs.clean()))
    assert same.verdict == "not significant" and not same.regressions


@pytest.mark.parametrize("seed", range(2, 5))
def test_chance_is_no_regression(seed: int) -> None:
    base = load_runs.clean()
    compared = compare(run(base), run(shifted(base, seed)))
    assert not compared.regressions
    assert not compared.uncompared


def test_slower_service_is_worse_and_faster_is_better() -> None:
    fast, slow = load_runs.clean(), load_runs.clean(middle_s=0.008)
    worse = compare(run(fast), run(slow))
    assert metric(worse, "p50").regression and metric(worse, "p99").regression
    assert worse.verdict == "worse"
    better = compare(run(slow), run(fast))
    assert better.verdict == "better" and not better.regressions
    assert metric(better, "p50").ratio == pytest.approx(1 / metric(worse, "p50").ratio)


def test_stalls_cost_goodput() -> None:
    compared = compare(run(load_runs.clean()), run(load_runs.recompiling()))
    goodput = metric(compared, "goodput")
    assert goodput.regression and goodput.ratio < 1
    assert metric(compared, "first answer").regression
    assert not compare(run(load_runs.recompiling()), run(load_runs.clean())).regressions


def test_no_longer_keeping_up_and_more_failures_are_worse() -> None:
    failing = dataclasses.replace(load_runs.clean(), failed=3)
    more = compare(run(load_runs.clean()), run(failing))
    assert metric(more, "failed").regression
    fewer = compare(run(failing), run(load_runs.clean()))
    assert fewer.verdict == "better"
    slow = dataclasses.replace(load_runs.overloaded(), strategy="full")
    compared = compare(run(load_runs.clean()), run(slow))
    assert any("keep up" in line for line in compared.regressions)
    assert metric(compared, "goodput").regression


def test_a_strategy_that_fails_only_in_b_is_worse() -> None:
    broken = LoadResult("full", ending="crashed", error="out of memory")
    compared = compare(run(load_runs.clean()), run(broken))
    assert any("out of memory" in line for line in compared.regressions)
    assert not compare(run(broken), run(load_runs.clean())).regressions
    assert not compare(run(broken), run(broken)).regressions


def test_a_change_that_eager_shares_is_not_the_strategys() -> None:
    before = run(load_runs.clean("eager", middle_s=0.006), load_runs.clean())
    eager = load_runs.clean("eager", middle_s=0.009)
    shared = compare(before, run(eager, load_runs.clean(middle_s=0.0055)))
    assert not metric(shared, "p50").regression
    assert shared.eager is not None and shared.eager.significant
    own = compare(before, run(eager, load_runs.clean(middle_s=0.009)))
    assert metric(own, "p50").regression
    assert not metric(own, "p50", "eager").regression  # it is the control


def test_too_few_requests_have_no_verdict() -> None:
    few = load_runs.interrupted()
    tail = metric(compare(run(few), run(few)), "p99", few.strategy)
    assert tail.verdict == "not judged" and tail.why


@pytest.mark.parametrize(
    "load",
    [
        {"rate": 80.0},
        {"seed": 1},
        {"arrivals": "constant"},
        {"rate": None},
        {"text": TextLoad((1, 20), (1, 9))},
    ],
)
def test_other_loads_are_refused(load: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"in A, .* in B"):
        compare(run(load_runs.clean()), run(load_runs.clean(), **load))


def test_other_runs_are_refused() -> None:
    bench = bench_runs.bench([bench_runs.row("full", 1.0)])
    for a, b in ((bench, run(load_runs.clean())), (run(load_runs.clean()), bench)):
        with pytest.raises(UserError, match="loadtest"):
            compare(a, b)
    with pytest.raises(UserError, match="eager"):
        compare(run(load_runs.clean()), run(load_runs.clean("eager")))


def test_other_machines_get_no_verdict() -> None:
    there = dataclasses.replace(
        run(load_runs.clean(middle_s=0.009)),
        environment={**bench_runs.ENVIRONMENT, "cores": 64},
    )
    compared = compare(run(load_runs.clean()), there)
    assert compared.unlike and not compared.regressions


def test_other_settings_are_noted() -> None:
    there = run(
        load_runs.clean(),
        load_runs.clean("regional"),
        workers=4,
        objective=dataclasses.replace(load_runs.OBJECTIVE, limit_ms=20),
    )
    compared = compare(run(load_runs.clean()), there)
    notes = " ".join(compared.notes)
    assert "workers: 1 in A, 4 in B" in notes and "only in B: regional" in notes
    assert metric(compared, "goodput").verdict == "not judged"
