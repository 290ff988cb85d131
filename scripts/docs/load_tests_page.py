"""The tables of docs/reference/load-tests.md, from runs of benchmarks/load_tests.py."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.load_tests import RESULTS, ROWS
from torchproof.measure.loadtest.results import judge_result
from torchproof.records import LoadResult, LoadTest, Percentile, Run
from torchproof.report import markdown

_NOTHING = "-"
_LEAST_SHARE = 0.05  # of a cause that is named
_TITLES = {
    "bert": "BERT with requests of 16 to 512 tokens",
    "gpt": "The bundled GPT with six shapes",
    "nanovlm": "nanoVLM with varying numbers of images",
    "generation": "The bundled GPT as a text model",
}
_COLD = ("first answer", "cold phase: ends, requests over the limit")
_LATENCY = ("p50", "p99")
_TEXT = (
    "first token: p50, p99",
    "per token: p50, p99",
    "tokens/s",
    "cost of 1M tokens",
)
_COLUMNS = ("answers within the limit", "objective", "largest causes of slow requests")


def section(device: str) -> str:
    """All rows that were measured on a device."""
    paths = {name: RESULTS / f"{name}-{device}.json" for name in ROWS}
    parts = [
        f"### {_TITLES[name]}\n\n{_table(path)}"
        for name, path in paths.items()
        if path.exists()
    ]
    return "\n\n".join(parts) or "No row has been measured."


def _table(path: Path) -> str:
    run = Run.from_json(json.loads(path.read_text()))
    test = run.load_test
    assert test is not None
    named = ("strategy", *_COLD, *(_TEXT if test.text else _LATENCY), *_COLUMNS)
    rows = [_cells(result, test) for result in test.results if result.answered]
    return _question(run, test) + "\n\n" + markdown.table(named, rows)


def _question(run: Run, test: LoadTest) -> str:
    facts, objective = run.environment, test.objective
    assert objective is not None
    device = facts.get("gpu") or f"CPU ({facts['machine']}), {facts['threads']} threads"
    size = f"size {facts['size']}, " if facts.get("size") else ""
    asked = test.text.lengths if test.text else f"{len(test.calls)} calls"
    slots = f", {test.workers} slots" if test.text else ""
    metric = "" if objective.metric == "latency" else f"{objective.metric}:"
    early = "" if run.ending == "finished" else " The run was stopped early."
    return (
        f"{device}, torch {facts['torch']}, commit {(facts.get('commit') or '-')[:8]}:"
        f" {size}{test.rate:g} requests/s, {test.planned} in all, {asked}{slots},"
        f" {metric}p{objective.percent:g} at most {objective.limit_ms:g} ms.{early}"
    )


def _cells(result: LoadResult, test: LoadTest) -> tuple[str, ...]:
    first = result.first_answer_after_s
    within = (
        _NOTHING
        if result.goodput_rate is None
        else f"{result.goodput_rate:.1f}/s; {result.answered} of {test.planned}"
        " answered"
    )
    return (
        f"`{result.strategy}`",
        _NOTHING if first is None else f"{first:.2f} s",
        _cold(result),
        *(_text_cells(result) if test.text else _latency_cells(result)),
        within,
        _objective(result, test),
        "; ".join(_causes(result)) or _NOTHING,
    )


def _objective(result: LoadResult, test: LoadTest) -> str:
    """What the requests of the run prove, judged as `loadtest` does."""
    if result.verdict is None or test.objective is None:
        return _NOTHING
    return judge_result(result, test.objective, workers=test.workers).verdict


def _cold(result: LoadResult) -> str:
    cold = result.cold
    if cold is None or cold.end_s is None:
        return "did not end"
    return f"{cold.end_s:.1f} s, {cold.missed} of {cold.requests}"


def _latency_cells(result: LoadResult) -> tuple[str, ...]:
    return _value(result.latency, 50.0), _value(result.latency, 99.0)


def _text_cells(result: LoadResult) -> tuple[str, ...]:
    text = result.generation
    if text is None:
        return (_NOTHING,) * len(_TEXT)
    return (
        *(
            f"{_value(each, 50.0)}, {_value(each, 99.0)}"
            for each in (text.first_token, text.per_token)
        ),
        _number(text.tokens_per_s),
        _number(text.cost_per_million),
    )


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.3g}"


def _value(percentiles: tuple[Percentile, ...], percent: float) -> str:
    for each in percentiles:
        if each.percent == percent and each.value_ms is not None:
            return f"{each.value_ms:.3g} ms"
    return _NOTHING


def _causes(result: LoadResult) -> Iterator[str]:
    """The largest cause while cold, and after that."""
    tails = {"cold": result.cold.tail if result.cold else None, "warm": result.tail}
    for phase, tail in tails.items():
        cause = tail.causes[0] if tail is not None and tail.causes else None
        if cause is not None and (cause.share or 0.0) >= _LEAST_SHARE:
            yield f"{phase}: {cause.code} {cause.text}, {cause.share:.0%}"


TABLES = {device: functools.partial(section, device) for device in ("cuda", "cpu")}
