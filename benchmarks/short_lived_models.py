"""Memory, threads and file descriptors of a program with many short-lived models.

    python -m benchmarks.short_lived_models [--models N] [--backend NAME] [--write]

Each model is compiled with `torchproof.compile`, called once and deleted. Models of one
class share their compiled code, so only the first one is compiled. The figures are
taken after the first model, after half of them and at the end. Python collects the
cycles of a large process rarely, and memory grows until it has done so a few times:
exit code 1 if it grows by more than LIMIT_KIB per model in the second half, or if
threads, file descriptors or processes become more.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn

import torchproof

RESULTS = Path(__file__).resolve().parent / "results" / "short-lived-models.json"
LIMIT_KIB = 1.0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(torch.relu(self.first(x)))
        return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--write", action="store_true", help="save the result")
    options = parser.parse_args()
    x = torch.randn(4, 8)
    points = []
    compiled = 0
    half = max(1, options.models // 2)
    start = time.perf_counter()
    for number in range(options.models):
        compiled += _one(x, options.backend)
        if number + 1 in (1, half, options.models):
            points.append(_figures(number + 1))
    seconds = time.perf_counter() - start
    grown = points[-1]["rss_kib"] - points[1]["rss_kib"]
    record = {
        "models": options.models,
        "backend": options.backend,
        "compilations": compiled,
        "seconds": round(seconds, 1),
        "kib_per_model": round(grown / max(1, options.models - half), 3),
        "points": points,
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {psutil.cpu_count()} cores",
    }
    print(json.dumps(record, indent=1))
    if options.write:
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if _is_flat(record) else 1


def _one(x: Tensor, backend: str) -> int:
    """Compiles a model, calls and deletes it; the number of its compilations."""
    model = torchproof.compile(Net(), backend=backend)
    with torch.no_grad():
        model(x)
    return len(torchproof.status(model).compilations)


def _figures(models: int) -> dict[str, int]:
    for _ in range(3):
        gc.collect()
    process = psutil.Process()
    return {
        "models": models,
        "rss_kib": process.memory_info().rss >> 10,
        "threads": threading.active_count(),
        "file_descriptors": process.num_fds(),
        "children": len(process.children(recursive=True)),
    }


def _is_flat(record: dict[str, Any]) -> bool:
    _, early, late = record["points"]
    same = ("threads", "file_descriptors", "children")
    return record["kib_per_model"] <= LIMIT_KIB and all(
        late[name] <= early[name] for name in same
    )


if __name__ == "__main__":
    sys.exit(main())
