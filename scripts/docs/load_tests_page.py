"""The tables of docs/reference/load-tests.md, from runs of benchmarks/load_tests.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.load_tests import RESULTS
from torchproof.records import LoadResult, Percentile, Run
from torchproof.report import markdown

_NOTHING = "-"
_COLUMNS = (
    "strategy",
    "first answer",
    "cold phase: ends, requests over the limit",
    "p50",
    "p99",
    "answers within the limit",
    "objective",
    "largest cause of slow requests",
)


def _table(path: Path) -> str:
    run = Run.from_json(json.loads(path.read_text()))
    test = run.load_test
    assert test is not None and test.objective is not None
    commit = (run.environment.get("commit") or "unknown")[:8]
    device = run.environment.get("gpu") or f"{run.environment['cores']} CPU cores"
    said = (
        f"{device}, torch {run.environment['torch']}, commit {commit}:"
        f" {test.rate:g} requests/s, {test.planned} in all, {len(test.calls)} calls,"
        f" p{test.objective.percent:g} at most {test.objective.limit_ms:g} ms."
    )
    rows = [_cells(result, test.planned) for result in test.results if result.answered]
    return said + "\n\n" + markdown.table(_COLUMNS, rows)


def _cells(result: LoadResult, planned: int) -> tuple[str, ...]:
    first = result.first_answer_after_s
    within = (
        _NOTHING
        if result.goodput_rate is None
        else f"{result.goodput_rate:.1f}/s; {result.answered} of {planned} answered"
    )
    return (
        f"`{result.strategy}`",
        _NOTHING if first is None else f"{first:.2f} s",
        _cold(result),
        _value(result.latency, 50.0),
        _value(result.latency, 99.0),
        within,
        result.verdict or _NOTHING,
        next(_causes(result), _NOTHING),
    )


def _cold(result: LoadResult) -> str:
    cold = result.cold
    if cold is None or cold.end_s is None:
        return "did not end"
    return f"{cold.end_s:.1f} s, {cold.missed} of {cold.requests}"


def _value(percentiles: tuple[Percentile, ...], percent: float) -> str:
    for each in percentiles:
        if each.percent == percent and each.value_ms is not None:
            return f"{each.value_ms:.3g} ms"
    return _NOTHING


def _causes(result: LoadResult) -> Iterator[str]:
    """The largest cause while cold, and after that."""
    tails = [result.cold.tail if result.cold else None, result.tail]
    for tail in tails:
        if tail is not None and tail.causes:
            cause = max(tail.causes, key=lambda each: each.share or 0.0)
            yield f"{cause.code} {cause.text}: {cause.share or 0.0:.0%}"


def _of(path: Path) -> Callable[[], str]:
    return lambda: _table(path)


TABLES = {path.stem: _of(path) for path in sorted(RESULTS.glob("*.json"))}
