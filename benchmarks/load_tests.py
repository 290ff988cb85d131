"""Load tests of real models: strategies answer the same timetable of requests.

    python -m benchmarks.load_tests [ROW ...] [--device cuda] [--seconds S]
        [--out FOLDER] [--again]

Each row is a run of `torchproof loadtest`, saved as FOLDER/ROW-DEVICE.json when it
ends; a row that is there is left out. Strategies run one after the other, each in a
fresh process with empty caches.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchproof import api
from torchproof.records import LatencyObjective, Run

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "load-tests"
LENGTHS = (16, 48, 96, 128, 192, 256, 384, 512)


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
class Row:
    """A target with its load, by device: requests per second, and limit in ms."""

    target: str
    load: Mapping[str, tuple[float, float]]
    strategies: Mapping[str, tuple[str, ...]]


ON_CPU = ("eager", "full", "compile:nowait")
ON_GPU = ("eager", "full:reduce-overhead", "graph:nowait")
BOTH = {"cpu": ON_CPU, "cuda": ON_GPU}
ROWS = {
    "gpt": Row("workload:gpt", {"cpu": (20, 100), "cuda": (40, 50)}, BOTH),
    "bert": Row(
        "benchmarks.load_tests:bert",
        {"cpu": (15, 200), "cuda": (60, 50)},
        {"cpu": ON_CPU, "cuda": ("eager", "full", "graph:nowait")},
    ),
    "nanovlm": Row("workload:nanovlm", {"cpu": (10, 200), "cuda": (20, 100)}, BOTH),
}


def measured(row: Row, device: str, seconds: float, work: Path) -> Run:
    rate, limit_ms = row.load[device]
    load_options = api.LoadOptions(
        rate=rate,
        duration_s=seconds,
        objective=LatencyObjective(99.0, limit_ms),
        strategies=row.strategies[device],
    )
    return api.loadtest(
        row.target,
        api.Options(device=device, quiet=True),
        load_options=load_options,
        progress=lambda text: print(text, file=sys.stderr, flush=True),
        command="python -m benchmarks.load_tests",
        save_in=work,
    )


def short(value: Any) -> Any:
    """Times to the microsecond, and no folders of this machine."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, str):
        return re.sub(r"/[^\s:]*/(site-packages|torchproof-\w+)/", "", value)
    if isinstance(value, dict):
        return {key: short(each) for key, each in value.items()}
    return [*map(short, value)] if isinstance(value, (list, tuple)) else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", default=[])
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=here)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    if unknown := [name for name in options.rows if name not in ROWS]:
        parser.error(f"no row {unknown[0]!r}: choose from {', '.join(ROWS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.rows or ROWS:
        path = options.out / f"{name}-{options.device}.json"
        if path.exists() and not options.again:
            continue
        with tempfile.TemporaryDirectory() as work:
            run = measured(ROWS[name], options.device, options.seconds, Path(work))
        path.write_text(json.dumps(short(run.to_json())) + "\n")
        print(name, run.ending, run.error or "", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
