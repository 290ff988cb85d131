"""Measures the rows that are published, each with one `torchproof bench`.

    python -m benchmarks.published [ROW ...] [--seconds N] [-o FOLDER]

Every strategy of a row runs in five processes. A row ends as published/ROW.json, the
run as `bench` saved it. The most important rows come first; none begins after
`--seconds`. Exit code 1 when a row was not measured.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from benchmarks.survey import ROOT, Options, Survey, torchproof
from benchmarks.survey import Row as Run

PROCESSES = 5  # of each strategy; fewer are not published
_TARGETS = "benchmarks/step_targets.py"
_MODES = ("full", "full:reduce-overhead")


@dataclass(frozen=True)
class Row:
    """A step of the published tables."""

    name: str
    title: str
    strategies: tuple[str, ...] = (*_MODES, "full+graph")
    train: bool = False
    device: str = "cuda"
    target: str = ""  # default: the factory of this name

    @property
    def command(self) -> tuple[str, ...]:
        """The arguments of torchproof."""
        factory = self.name.replace("-", "_")
        return (
            *("bench", self.target or f"{_TARGETS}:{factory}"),
            *("--device", self.device) * bool(self.target),
            *("--strategies", ",".join(self.strategies)),
            *("--train",) * self.train,
            *("--repeats", str(PROCESSES), "--steps-only"),
        )


# On one H200 with 16 cores; the last one runs on the CPU of any machine.
ROWS = (
    Row("llama-inference", "Llama 16x1024, inference 1x128"),
    Row("gpt2-training", "GPT-2 124M, training 8x128", train=True),
    Row("vit-inference", "ViT-B/16, inference 8x224"),
    Row("gpt2-inference", "GPT-2 124M, inference 1x128"),
    Row("nanovlm-inference", "nanovlm large, inference 4x128"),
    Row("decoder-training-small", "decoder 24x512, training 1x64", train=True),
    Row(
        "gpt-cpu",
        "gpt tiny, inference",
        strategies=_MODES[:1],
        device="cpu",
        target="workload:gpt",
    ),
)
BY_NAME = {row.name: row for row in ROWS}


def measure(name: str, options: Options) -> Run:
    """The run as `bench` prints it; its command names no folder of this machine."""
    run, error = torchproof(*BY_NAME[name].command, cwd=ROOT)
    return run or {"error": error}


SURVEY = Survey(
    "published",
    lambda options: list(BY_NAME),
    measure,
    lambda found: [],
    quick=("gpt-cpu",),
    limit_s=900,
    is_folder=True,
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
