"""The memory that recording a step takes, beside `mode="reduce-overhead"`.

    python -m benchmarks.graph_memory [STEP/WAY ...] [--jobs 8]

`peak_mib` is the most memory that torch has reserved on the GPU up to the end of the
third call, when every way has compiled and recorded; `kept_mib` what is reserved then.
With `wait=False`, 40 seconds of calls follow, while compiled recordings replace the
first one. A step is a forward, a forward and backward (`training`), or that with an
optimizer (`optimizer`), whose state the first call creates.

Exit code 1 if a graphed step takes more than the stated part of reduce-overhead's
memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import torchproof
from benchmarks import step_targets
from benchmarks.survey import Options, Row, Survey

MOST = {"full+graph": 1.15, "regional+graph": 1.15, "wait=False": 1.3}
STEPS = ("gpt2_inference", "gpt2_training", "gpt2_optimizer", "gemma_optimizer")
REFERENCE = "reduce-overhead"
_CALLS = 3
_STAGES_S = 40.0
_MIB = 1 << 20

Step = Callable[[], Any]


def _made(name: str) -> tuple[Any, Row, Callable[..., Any]]:
    """The model, a call, and the step as a function that calls a given model."""
    family, _, kind = name.partition("_")
    target = name if kind != "optimizer" else f"{family}_training"
    model, [call] = getattr(step_targets, target)()

    def forward(run: Any, **arguments: Any) -> Any:
        with torch.no_grad():
            return run(**arguments).logits

    def backward(run: Any, **arguments: Any) -> Any:
        model.zero_grad(set_to_none=True)
        loss = run(**arguments).loss
        loss.backward()
        return loss.detach()

    if kind == "inference":
        return model, call, forward
    if kind == "training":
        return model, call, backward
    optimizer = torch.optim.AdamW(model.parameters())

    def train(run: Any, **arguments: Any) -> Any:
        loss = backward(run, **arguments)
        optimizer.step()
        return loss

    return model, call, train


def measure(name: str, options: Options) -> Row:
    step, _, way = name.partition("/")
    torch.manual_seed(0)
    model, call, function = _made(step)
    run = _running(way, model, function, call)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(_CALLS):
        run()
        torch.cuda.synchronize()
    row: Row = {}
    if way == "wait=False":
        until = time.monotonic() + _STAGES_S
        while time.monotonic() < until:
            run()
            torch.cuda.synchronize()
            time.sleep(0.01)
    graphed = getattr(run, "graphed", None)
    if graphed is not None:
        row["falls_back"] = graphed.falls_back
        stages = graphed.status().stages
        row["stages"] = [f"{s.strategy}: {s.state} {s.why or ''}" for s in stages]
    peak = torch.cuda.max_memory_reserved() // _MIB
    return row | {"peak_mib": peak, "kept_mib": torch.cuda.memory_reserved() // _MIB}


def _running(way: str, model: Any, function: Any, call: Row) -> Step:
    if way == REFERENCE:
        compiled: Any = torch.compile(model, mode=way, dynamic=False)

        def run() -> Any:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            return function(compiled, **call)

        return run

    def whole(**arguments: Any) -> Any:
        return function(model, **arguments)

    is_later = way == "wait=False"
    strategy = None if is_later else way.removesuffix("+graph")
    graphed = torchproof.graph(whole, strategy=strategy, wait=not is_later)

    def replay() -> Any:
        return graphed(**call)

    replay.graphed = graphed  # type: ignore[attr-defined]
    return replay


def rows(options: Options) -> Iterator[str]:
    for step in STEPS:
        yield from (f"{step}/{way}" for way in (REFERENCE, *MOST))


def failures(found: dict[str, Row]) -> Iterator[str]:
    for name, row in found.items():
        step, _, way = name.partition("/")
        reference = found.get(f"{step}/{REFERENCE}", {}).get("peak_mib")
        if "peak_mib" not in row:
            yield f"{name}: {row.get('error', 'not measured')}"
        elif row.get("falls_back"):
            yield f"{name}: not recorded: {row['falls_back'][0]}"
        elif way in MOST and reference and row["peak_mib"] > MOST[way] * reference:
            part = row["peak_mib"] / reference
            yield f"{name}: {part:.2f} of reduce-overhead's memory"


SURVEY = Survey(
    "graph_memory",
    rows,
    measure,
    failures,
    devices=("cuda",),
    limit_s=300,
    packages=("transformers",),
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
