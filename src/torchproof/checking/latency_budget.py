"""Latency budgets of tests: limits on percentiles of what a test serves under load."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchproof import targets
from torchproof.checking import budget
from torchproof.measure import LoadOptions, loadtest
from torchproof.records import (
    COUNTS,
    LatencyObjective,
    LoadResult,
    LoadTest,
    Run,
    UserError,
    shapes,
)

# The limits, in ms, and the percentile that each of them is about.
LIMITS = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p999_ms": 99.9}
# The load, as the options of a load test have it.
LOAD = ("rate", "requests", "arrivals", "seed", "workers", "cold")
_KNOWN = (*LIMITS, *LOAD)


@dataclass(frozen=True)
class LatencyBudget:
    """Limits by name, and the load under which they must hold."""

    limits: Mapping[str, float] = field(default_factory=dict, hash=False)
    load: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, marks: budget.Marks) -> LatencyBudget:
        """Combines marks, the nearest one last: it overrides the others."""
        arguments = budget.combined(
            marks, "latency_budget", _KNOWN, _assert_valid, example="p99_ms=50"
        )
        limits = {name: arguments[name] for name in LIMITS if arguments.get(name)}
        if not limits:
            raise UserError("latency_budget has no limit: try p99_ms=50")
        load = {name: arguments[name] for name in LOAD if name in arguments}
        made = cls(limits, load)
        made.options()  # raises if the load cannot be
        return made

    def options(self, *, strategy: str | None = None, **changed: Any) -> LoadOptions:
        """Of the load test, with as many requests as the limits need by default."""
        for name, value in changed.items():
            budget.assert_known("latency_budget", name, _KNOWN)
            _assert_valid(name, value)
        needed = {n: loadtest.requests_needed(LIMITS[n]) for n in self.limits}
        load = {"cold": False, **self.load, **changed}
        load.setdefault("requests", max(needed.values(), default=None))
        for name, least in needed.items():
            if load["requests"] < least:
                raise UserError(
                    f"latency_budget({name}={self.limits[name]:g},"
                    f" requests={load['requests']}): {least} requests are needed"
                )
        objective = None
        if self.limits:
            name = max(self.limits, key=lambda name: LIMITS[name])
            objective = LatencyObjective(LIMITS[name], float(self.limits[name]))
        if load.get("rate") is None:
            raise UserError("latency_budget needs a rate: rate=20 requests per second")
        strategies = () if strategy is None else (strategy,)
        return LoadOptions(**load, objective=objective, strategies=strategies)

    def broken_by(self, run: Run) -> str | None:
        """The limits that a run exceeds, in one sentence; None if it exceeds none."""
        assert run.load_test is not None
        for result in run.load_test.results:
            if result.error or result.failed or not result.answered:
                return f"{self._as_code(self.limits)}: {_failure(result)}"
            workers = run.load_test.workers
            exceeded = [n for n in self.limits if self._is_over(n, result, workers)]
            if exceeded:
                texts = [_measured(LIMITS[name], result) for name in exceeded]
                at = f"at {run.load_test.rate:g} requests/s"
                return f"{self._as_code(exceeded)}: {', '.join(texts)} {at}"
        return None

    def _is_over(self, name: str, result: LoadResult, workers: int) -> bool:
        """Whether the requests prove that the limit is exceeded."""
        limit = LatencyObjective(LIMITS[name], float(self.limits[name]))
        judgement = loadtest.judge_result(result, limit, workers=workers)
        return judgement.verdict == "missed"

    def unused(self) -> str:
        """What to say of a test that served nothing."""
        code = self._as_code(self.limits)
        return f"{code}: nothing was served: call the fixture latency_check"

    def _as_code(self, names: Iterable[str]) -> str:
        inside = ", ".join(f"{name}={self.limits[name]:g}" for name in names)
        return f"latency_budget({inside})"


def _failure(result: LoadResult) -> str:
    if result.error:
        return result.error
    text = max(result.errors, key=lambda key: result.errors[key], default="no text")
    total = len(result.requests.arrival_s)
    return f"{result.failed} of {total} requests failed: {text}"


def _measured(percent: float, result: LoadResult) -> str:
    row = next(row for row in result.latency if row.percent == percent)
    value = (
        "more than can be told" if row.value_ms is None else f"{row.value_ms:.3g} ms"
    )
    return f"p{percent:g} is {value}"


def _assert_valid(name: str, value: Any) -> None:
    if name in LIMITS and value is not None and not _is_positive(value):
        raise UserError(f"latency_budget({name}={value!r}): use milliseconds above 0")
    if name in ("rate", "requests", "workers") and not _is_positive(value):
        raise UserError(f"latency_budget({name}={value!r}): use a number above 0")
    if name in ("requests", "workers") and not isinstance(value, int):
        raise UserError(f"latency_budget({name}={value!r}): use a whole number")


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf


# -- serving ---------------------------------------------------------------------------


def check(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    options: LoadOptions,
    *,
    name: str,
    folder: Path,
) -> Run:
    """Serves a function in this process."""
    budget.assert_calls(inputs)
    test = loadtest.serve_here(fn, inputs, options, name=name, folder=folder)
    return _run(name, test, {})


def check_target(target: str, options: LoadOptions) -> Run:
    """Serves a target of `torchproof loadtest`, in a process of its own."""
    plan = loadtest.LoadPlan.of(targets.parse(target), options, quiet=True)
    made = loadtest.run_load_test(plan, lambda text: None)
    if made.ending == "interrupted":
        raise KeyboardInterrupt
    if made.error:
        raise UserError(f"{target}: {made.error}")
    return _run(target, made.test, made.environment)


def _run(name: str, test: LoadTest, environment: shapes.Environment) -> Run:
    """A run that is not saved."""
    return Run(
        id="",
        target=name,
        strategy=", ".join(result.strategy for result in test.results),
        environment=environment,
        counts=dict.fromkeys(COUNTS),
        load_test=test,
        verb="loadtest",
    )
