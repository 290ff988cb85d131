"""What each effort of `torchproof check` takes, next to a bare run of the same calls.

    python -m benchmarks.check_cost [PROGRAM ...] [--quick]

The bare run loads the target, compiles it with `torch.compile` and makes its calls. A
run is a whole process with empty caches, timed from start to exit, one at a time.
`taskset -c 0,1` limits the cores. Exit code 1 when a ratio is above its limit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.survey import ROOT, Options, Row, Survey, python

LIMITS = {"quick": 1.3, "normal": 4.0, "full": 6.0}  # times a bare run
TARGET = "benchmarks/check_cost.py"
BARE = """
import sys, torch
from benchmarks import check_cost
model, calls = getattr(check_cost, sys.argv[1])()
compiled = torch.compile(model)
for call in calls:
    compiled(**call) if isinstance(call, dict) else compiled(*call)
"""


class Clipped(nn.Module):
    """A break in each call, and a recompile for the other batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor, limit: float) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        largest = x.abs().max().item()
        if largest > limit:
            x = x * (limit / largest)
        return x.sum(-1)


def clipped(batch: int = 4) -> tuple[nn.Module, list[tuple[Tensor, float]]]:
    sizes = (batch, batch, batch + 3, batch)
    return Clipped().eval(), [(torch.randn(size, 32), 0.5) for size in sizes]


def bert(batch: int = 2, sequence: int = 64) -> tuple[nn.Module, list[dict[str, Any]]]:
    """The class of transformers, four narrow layers."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=128,
        vocab_size=1000,
    )
    calls = [{"input_ids": torch.randint(0, 1000, (batch, sequence))} for _ in range(3)]
    return BertModel(config).eval(), calls


PROGRAMS = ("clipped", "bert")


def seconds(program: str, effort: str | None) -> float:
    """How long a process took: a check of this effort, or the bare run."""
    if effort is None:
        command = ["-c", BARE, program]
    else:
        check = ("check", f"{ROOT / TARGET}:{program}", "--effort", effort)
        command = ["-m", "torchproof", *check, "--format", "json", "-q"]
    begin = time.perf_counter()
    done = python(*command, CUDA_VISIBLE_DEVICES="")
    took = time.perf_counter() - begin
    if done.returncode not in ((0,) if effort is None else (0, 1)):
        raise RuntimeError(f"{program} {effort}: {done.stderr[-500:]}")
    return round(took, 2)


def measure(name: str, options: Options) -> Row:
    taken = {"bare": seconds(name, None)}
    taken |= {effort: seconds(name, effort) for effort in LIMITS}
    ratios = {effort: round(taken[effort] / taken["bare"], 2) for effort in LIMITS}
    return {"runs_s": taken, "ratios": ratios}


def failures(found: dict[str, Row]) -> Iterator[str]:
    for name, row in found.items():
        for effort, ratio in row["ratios"].items():
            if ratio > LIMITS[effort]:
                yield f"{name}: {effort} takes {ratio}x, at most {LIMITS[effort]}x"


SURVEY = Survey(
    "check_cost",
    lambda options: PROGRAMS,
    measure,
    failures,
    quick=("clipped",),
    packages=("transformers",),
    is_isolated=False,
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
