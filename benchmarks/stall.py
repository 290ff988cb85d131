"""The longest pause of a caller while its model compiles, with `wait=False`.

A decoder of 12 layers is compiled by Inductor, from an empty cache, while one thread
calls it again and again. Each call is timed until compiled code has answered some. A
pause is what a call took beyond the median of eager calls before.

    python -m benchmarks.stall [--train] [--write]

Exit code 1 when the longest pause is more than a fifth of the seconds of compiling.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torchproof
from benchmarks import decoder12

LIMIT = 0.2
EAGER_CALLS = 20
COMPILED_CALLS = 20
PATIENCE_S = 600.0
HERE = Path(__file__).resolve().parent


def step(model: Any, call: tuple[Tensor, ...], *, train: bool) -> Tensor:
    answer: Tensor = model(*call)
    if train:
        loss = answer.float().square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        model.zero_grad()
    return answer.detach()


def timed(model: Any, call: tuple[Tensor, ...], *, train: bool) -> float:
    begin = time.perf_counter()
    step(model, call, train=train)
    return time.perf_counter() - begin


def measure(*, train: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model, calls = decoder12.make()
    call = calls[0]
    model.train(train)
    with torch.set_grad_enabled(train):
        expected = step(model, call, train=train)
        eager_s = [timed(model, call, train=train) for _ in range(EAGER_CALLS)]
        torchproof.compile(model, wait=False)
        meanwhile_s, compiled_s = follow(model, call, train=train)
        difference = (step(model, call, train=train) - expected).abs().max().item()
    told = torchproof.status(model)
    usual_s = statistics.median(eager_s)
    longest_s = max(meanwhile_s) - usual_s
    return {
        "train": train,
        "compile_s": told.compile_s,
        "longest_pause_s": longest_s,
        "share": longest_s / told.compile_s,
        "eager_call_s": usual_s,
        "call_while_compiling_s": statistics.median(meanwhile_s),
        "compiled_call_s": statistics.median(compiled_s),
        "calls_while_compiling": len(meanwhile_s),
        "largest_difference": difference,
    }


def follow(
    model: Any, call: tuple[Tensor, ...], *, train: bool
) -> tuple[list[float], list[float]]:
    """Seconds of the calls until compiled code is in use, and of those after."""
    meanwhile_s: list[float] = []
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        before = torchproof.status(model).compiled_calls
        meanwhile_s.append(timed(model, call, train=train))
        if torchproof.status(model).compiled_calls > before:
            # The first compiled call is a caller's too, and among the pauses.
            after = [timed(model, call, train=train) for _ in range(COMPILED_CALLS)]
            return meanwhile_s, after
    raise SystemExit(f"not compiled in time: {torchproof.status(model)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--write", action="store_true", help="keep the numbers")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        numbers = measure(train=arguments.train) | {
            "limit": LIMIT,
            "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
            "torch": torch.__version__,
        }
    print(
        f"{numbers['compile_s']:.1f} s compiling, {numbers['calls_while_compiling']}"
        f" calls meanwhile, longest pause {numbers['longest_pause_s']:.2f} s"
        f" ({numbers['share']:.0%}, limit {LIMIT:.0%}); a call"
        f" {numbers['eager_call_s']:.3f}"
        f" s eager, {numbers['compiled_call_s']:.3f} s compiled; largest difference"
        f" {numbers['largest_difference']:.2g}"
    )
    if arguments.write:
        kind = "training" if arguments.train else "inference"
        path = HERE / "results" / f"stall-{kind}-{platform.machine()}.json"
        path.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
        print(f"written to {path}", file=sys.stderr)
    return int(numbers["share"] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
