"""The table of results in README.md, read from saved runs under benchmarks/results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import results_tables
import whole_step_tables

from torchproof.records import store
from torchproof.records.run import Measurement, Run
from torchproof.report import markdown, numbers

HEADER = ("step", "device", "eager", "torch.compile", "torchproof", "speedup")
WHOLE_STEPS = ("llama-inference", "gpt2-training", "vit-inference")


def measured() -> str:
    """Five results with their commands: whole steps, a slowdown, and no gain."""
    rows = list(_rows())
    commands = "\n".join(f"{n}. {row[-1]}" for n, row in enumerate(rows, 1))
    numbered = ((f"{n}. {row[0]}", *row[1:-1]) for n, row in enumerate(rows, 1))
    return (
        f"{markdown.table(HEADER, numbered)}\n\n"
        "`torch.compile` is the fastest of its modes that were measured; the speedup is"
        " that of torchproof's strategy over eager, with its 95 percent interval. The"
        f" commands that repeat the rows, in a checkout:\n\n{commands}"
    )


def _rows() -> Iterator[tuple[str, ...]]:
    rows = {row.step.name: row for row in whole_step_tables.read()}
    for name in WHOLE_STEPS:
        yield _whole_step(rows[name])
    yield _slowdown()
    yield _no_gain(store.read(results_tables.KEPT / "modes-gpt-cpu.json"))


def _whole_step(row: whole_step_tables.Row) -> tuple[str, ...]:
    eager, mode, graph = row.arm("eager"), row.mode, row.graph
    assert eager and mode and graph
    return (
        row.step.title,
        _device(row.runs[0]),
        numbers.milliseconds(eager.median_ms),
        _named(mode, mode.strategy.removeprefix("full:")),
        _named(graph, graph.strategy),
        numbers.times(graph.vs_eager, graph.vs_eager_low, graph.vs_eager_high),
        f"`python -m benchmarks.whole_step --rows {row.step.name} --again`",
    )


def _slowdown() -> tuple[str, ...]:
    """The fixed nanoVLM, compiled in the default mode, against the original."""
    path = results_tables.KEPT / "workloads-cuda.json"
    rows: dict[str, Any] = json.loads(path.read_text())["rows"]
    eager, compiled = rows["nanovlm-original eager"], rows["nanovlm compiled"]
    return (
        "nanovlm large, inference",
        f"{compiled['device'].removeprefix('NVIDIA ')}, torch {compiled['torch']}",
        numbers.milliseconds(eager["median_ms"]),
        f"{numbers.milliseconds(compiled['median_ms'])} (`default`)",
        numbers.UNKNOWN,
        f"{compiled['median_ms'] / eager['median_ms']:.2f}x slower",
        "`python benchmarks/workloads.py nanovlm --device cuda --again`",
    )


def _no_gain(run: Run) -> tuple[str, ...]:
    arms = {arm.strategy: arm for arm in run.measurements}
    eager = arms.pop("eager")
    best = min(arms.values(), key=lambda arm: arm.median_ms or float("inf"))
    assert best.verdict == "not significant"
    return (
        "gpt tiny, inference",
        _device(run),
        numbers.milliseconds(eager.median_ms),
        _named(best, best.strategy.removeprefix("full:")),
        "stay eager",
        best.verdict,
        f"`{results_tables.command_of(run)}`",
    )


def _named(arm: Measurement, name: str) -> str:
    return f"{numbers.milliseconds(arm.median_ms)} (`{name}`)"


def _device(run: Run) -> str:
    where = run.environment
    cpu = f"CPU, {where.get('machine')}, {where.get('cores')} cores"
    gpu = str(where.get("gpu") or "").removeprefix("NVIDIA ")
    return f"{gpu or cpu}, torch {where['torch']}"


TABLES: dict[str, Callable[[], str]] = {"measured": measured}
