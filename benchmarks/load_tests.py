"""Load tests of real models: strategies answer the same timetable of requests.

    python -m benchmarks.load_tests [ROW ...] [--device cuda] [--strategies NAMES]
        [--length SECONDS]

A row is a run of `torchproof loadtest`, saved as load-tests/ROW-DEVICE.json.
Strategies run one after the other, each in a fresh process with empty caches.
`--length` replaces that of each timetable, which leaves 459 requests, the fewest for a
p99, after the compilations of the cold phase. `taskset` before the command limits the
CPUs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.survey import ROOT, Options, Survey, torchproof
from benchmarks.survey import Row as Result

LENGTHS = (16, 48, 96, 128, 192, 256, 384, 512)
STRATEGIES = "eager,full,compile:nowait"


def bert() -> tuple[Any, list[Any]]:
    """BERT with requests of 16 to 512 tokens; small on a CPU, base on a GPU."""
    import transformers

    library: Any = transformers
    small = {"num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 1024}
    small["num_attention_heads"] = 4
    config = library.BertConfig(**({} if torch.cuda.is_available() else small))
    generator = torch.Generator().manual_seed(0)
    calls = [
        {
            "input_ids": torch.randint(100, 20000, (1, length), generator=generator),
            "attention_mask": torch.ones(1, length, dtype=torch.long),
        }
        for length in LENGTHS
    ]
    return library.BertModel(config).eval(), calls


@dataclass(frozen=True)
class Load:
    """Requests per second, for how long, and the limit of p99."""

    rate: float
    seconds: float
    limit_ms: float


@dataclass(frozen=True)
class Row:
    """A target with its load by device."""

    target: str
    load: Mapping[str, Load]


ROWS = {
    "bert": Row(
        "benchmarks.load_tests:bert",
        {"cpu": Load(30, 85, 200), "cuda": Load(40, 55, 100)},
    ),
    "gpt": Row("workload:gpt", {"cpu": Load(40, 80, 100), "cuda": Load(30, 45, 100)}),
    "nanovlm": Row(
        "workload:nanovlm", {"cpu": Load(30, 85, 100), "cuda": Load(30, 50, 100)}
    ),
}


def measure(name: str, options: Options) -> Result:
    """The run as `loadtest` prints it."""
    row = ROWS[name.rpartition("-")[0]]
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # as on a machine without a GPU
    load = row.load[options.device]
    run, error = torchproof(
        *("loadtest", row.target, "--device", options.device),
        *("--rate", str(load.rate), "--slo", f"p99={load.limit_ms}ms"),
        *("--duration", f"{options.length or load.seconds}s"),
        *("--strategies", options.strategies),
        limit_s=options.limit,
        cwd=ROOT,
    )
    document: Result = short(run) if run else {"error": error}
    return document


def short(value: Any) -> Any:
    """Times to the microsecond, and no folders of this machine."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, str):
        return re.sub(r"/[^\s:]*/(site-packages|torchproof-\w+)/", "", value)
    if isinstance(value, dict):
        return {key: short(each) for key, each in value.items()}
    return [*map(short, value)] if isinstance(value, (list, tuple)) else value


SURVEY = Survey(
    "load_tests",
    lambda options: [f"{name}-{options.device}" for name in ROWS],
    measure,
    lambda found: [],
    limit_s=1800,
    devices=("cpu", "cuda"),
    is_folder=True,
    flags={
        "--strategies": {"default": STRATEGIES},
        "--length": {"type": float, "help": "seconds of each timetable"},
    },
    result="load-tests",
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
