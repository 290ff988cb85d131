"""What `torchproof.compile(model)` does with a GPT of some size, all by itself.

    python benchmarks/default_policy.py --size 40b --device cuda --write

The size decides on the strategy. Recorded: that decision, the seconds of the first
calls, the median of later calls, eager's median before, the peak of memory, and
the status at the end. Rows are kept in benchmarks/results/default-policy-DEVICE.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import torchproof
from torchproof.targets.workloads import gpt

RESULTS = Path(__file__).resolve().parent / "results"
CALLS = 5


def seconds(model: Any, call: tuple[Any, ...]) -> float:
    started = time.perf_counter()
    model(*call)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def measured(size: str, device: str, batch: int, sequence: int) -> dict[str, Any]:
    model, calls = gpt.make(size, batch, sequence, device=device)
    call = calls[0]
    with torch.inference_mode():
        eager = [seconds(model, call) for _ in range(CALLS)]
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        torchproof.compile(model)
        compiled = [seconds(model, call) for _ in range(CALLS + 2)]
    status = torchproof.status(model)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    return {
        "size": size,
        "parameters": torchproof.plan(model).parameters,
        "strategy": status.strategy,
        "why": status.why,
        "batch": batch,
        "sequence": sequence,
        "first_calls_s": compiled[:2],
        "compiled_ms": statistics.median(compiled[2:]) * 1e3,
        "eager_ms": statistics.median(eager[1:]) * 1e3,
        "peak_bytes": peak,
        "compile_s": status.compile_s,
        "fallbacks": [item.why for item in status.fallbacks],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="tiny", choices=list(gpt.SIZES))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=160)
    parser.add_argument("--write", action="store_true")
    told = parser.parse_args()
    row = measured(told.size, told.device, told.batch, told.sequence)
    row |= {"torch": torch.__version__, "command": " ".join(sys.argv)}
    if told.device == "cuda":
        row["gpu"] = torch.cuda.get_device_name()
    print(json.dumps(row, indent=1))
    if told.write:
        path = RESULTS / f"default-policy-{told.device}.json"
        rows = json.loads(path.read_text()) if path.exists() else {}
        rows[told.size] = row
        path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
