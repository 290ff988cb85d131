"""Load tests of real models: strategies answer the same timetable of requests.

    python -m benchmarks.load_tests [ROW ...] [--device cuda] [--strategies NAMES]
        [--seconds S] [--limit S] [--threads N] [--out FOLDER] [--again]

Each row is a run of `torchproof loadtest`, saved as FOLDER/ROW-DEVICE.json when it
ends; a row that is there is left out. Strategies run one after the other, each in a
fresh process with empty caches. `--seconds` replaces the length of each timetable,
which leaves 459 requests, the fewest for a p99, after the compilations of the cold
phase. A row that takes longer than `--limit` is stopped and saved as far as it is. To
measure on some of the CPUs of a machine, use `taskset` before the command: torch and
Inductor take as many threads. `--threads` sets those of torch apart.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchproof import api
from torchproof.records import LatencyMetric, LatencyObjective, Run

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "load-tests"
LENGTHS = (16, 48, 96, 128, 192, 256, 384, 512)
STRATEGIES = ("eager", "full", "compile:nowait")


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
    """Requests per second, for how long, and the limit of p99.

    `price` is an example, per hour of the machine.
    """

    rate: float
    seconds: float
    limit_ms: float
    price: float | None = None


@dataclass(frozen=True)
class Row:
    """A target with its load by device; `text` serves it as prefill and decode."""

    target: str
    load: Mapping[str, Load]
    text: api.TextOptions | None = None
    metric: LatencyMetric = "latency"


ROWS = {
    "bert": Row(
        "benchmarks.load_tests:bert",
        {"cpu": Load(30, 85, 200), "cuda": Load(40, 55, 100)},
    ),
    "gpt": Row("workload:gpt", {"cpu": Load(40, 80, 100), "cuda": Load(30, 45, 100)}),
    "nanovlm": Row(
        "workload:nanovlm", {"cpu": Load(30, 85, 100), "cuda": Load(30, 50, 100)}
    ),
    "generation": Row(
        "workload:gpt",
        {"cpu": Load(30, 80, 200, price=0.4), "cuda": Load(30, 60, 200, price=3.0)},
        api.TextOptions(prompt_tokens=(16, 128), output_tokens=(16, 32)),
        "first_token",
    ),
}


def measured(row: Row, options: argparse.Namespace, work: Path) -> Run:
    load = row.load[options.device]
    text = row.text and dataclasses.replace(row.text, price=load.price)
    load_options = api.LoadOptions(
        rate=load.rate,
        duration_s=options.seconds or load.seconds,
        objective=LatencyObjective(99.0, load.limit_ms, row.metric),
        strategies=options.strategies,
        text=text,
    )
    with interrupted_after(options.limit):
        return api.loadtest(
            row.target,
            api.Options(device=options.device, quiet=True),
            load_options=load_options,
            progress=lambda text: print(text, file=sys.stderr, flush=True),
            command="python -m benchmarks.load_tests",
            save_in=work,
        )


@contextlib.contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Acts as Ctrl-C when the time is over: what was measured is kept. 0: never."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def short(value: Any) -> Any:
    """Times to the microsecond, and no folders of this machine."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, str):
        return re.sub(r"/[^\s:]*/(site-packages|torchproof-\w+)/", "", value)
    if isinstance(value, dict):
        return {key: short(each) for key, each in value.items()}
    return [*map(short, value)] if isinstance(value, (list, tuple)) else value


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", default=[])
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=here)
    parser.add_argument(
        "--strategies",
        type=lambda text: tuple(text.split(",")),
        default=STRATEGIES,
    )
    parser.add_argument("--seconds", type=float, help="of each timetable")
    parser.add_argument("--limit", type=float, default=0.0, help="seconds per row")
    parser.add_argument("--threads", type=int, help="of torch")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    if unknown := [name for name in options.rows if name not in ROWS]:
        parser.error(f"no row {unknown[0]!r}: choose from {', '.join(ROWS)}")
    return options


def main() -> int:
    options = read_options()
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # as on a machine without a GPU
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.rows or ROWS:
        path = options.out / f"{name}-{options.device}.json"
        if path.exists() and not options.again:
            continue
        with tempfile.TemporaryDirectory() as work:
            run = measured(ROWS[name], options, Path(work))
        path.write_text(json.dumps(short(run.to_json())) + "\n")
        print(name, run.ending, run.error or "", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
