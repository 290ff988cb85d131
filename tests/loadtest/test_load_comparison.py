"""Two load tests compared: what is worse, what is noise, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import bench_runs
import load_runs
import pytest
from test_comparison import described

from torchproof.measure import compare
from torchproof.records import LoadResult, Run, TextLoad, UserError


def run(*results: LoadResult, **test: Any) -> Run:
    return load_runs.run(results, test=test)


def eager(middle_s: float) -> LoadResult:
    return load_runs.clean("eager", middle_s=middle_s)


def redrawn(seed: int) -> LoadResult:
    """The same strategy on another day: the same requests, other service times."""
    service = load_runs.services(load_runs.COUNT, 0.004, seed=seed)
    requests = load_runs.queued(load_runs.arrivals(load_runs.COUNT), service)
    return load_runs.result("full", requests)


CLEAN = run(load_runs.clean())
SLOW = run(load_runs.clean(middle_s=0.008))
STALLED = run(load_runs.recompiling())
FAILING = run(dataclasses.replace(load_runs.clean(), failed=3))
OVERLOADED = run(dataclasses.replace(load_runs.overloaded(), strategy="full"))
BROKEN = run(LoadResult("full", ending="crashed", error="out of memory"))
WITH_EAGER = run(eager(0.006), load_runs.clean())
FEW = run(load_runs.interrupted())
STRICT = dataclasses.replace(load_runs.OBJECTIVE, limit_ms=20)

CASES = {
    "the same run": (CLEAN, CLEAN),
    **{f"by chance, {n}": (CLEAN, run(redrawn(n))) for n in range(2, 5)},
    "slower": (CLEAN, SLOW),
    "faster": (SLOW, CLEAN),
    "stalls in B": (CLEAN, STALLED),
    "stalls in A": (STALLED, CLEAN),
    "failures in B": (CLEAN, FAILING),
    "failures in A": (FAILING, CLEAN),
    "overloaded in B": (CLEAN, OVERLOADED),
    "broken in B": (CLEAN, BROKEN),
    "broken in A": (BROKEN, CLEAN),
    "broken in both": (BROKEN, BROKEN),
    "slower, and eager too": (
        WITH_EAGER,
        run(eager(0.009), load_runs.clean(middle_s=0.0055)),
    ),
    "slower by more than eager": (
        WITH_EAGER,
        run(eager(0.009), load_runs.clean(middle_s=0.009)),
    ),
    "few requests": (FEW, FEW),
    "another machine": (
        CLEAN,
        dataclasses.replace(SLOW, environment={**bench_runs.ENVIRONMENT, "cores": 64}),
    ),
    "other settings, and a strategy more": (
        CLEAN,
        run(
            load_runs.clean(),
            load_runs.clean("regional"),
            workers=4,
            objective=STRICT,
        ),
    ),
}


def test_load_comparisons_are_as_they_were(
    snapshot: Callable[[str, str], None],
) -> None:
    texts = []
    for name, (a, b) in CASES.items():
        found = compare(a, b)
        lines = [f"{name}: {found.verdict}", *described(found)]
        texts.append("\n    ".join(lines) + "\n")
    snapshot("load-comparisons.txt", "".join(texts))


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
        compare(CLEAN, run(load_runs.clean(), **load))


def test_other_runs_are_refused() -> None:
    bench = bench_runs.bench([bench_runs.row("full", 1.0)])
    for a, b in ((bench, CLEAN), (CLEAN, bench)):
        with pytest.raises(UserError, match="loadtest"):
            compare(a, b)
    with pytest.raises(UserError, match="eager"):
        compare(CLEAN, run(load_runs.clean("eager")))
