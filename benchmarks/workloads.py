"""What the cures of the workloads are worth: originals and cured forms, timed.

    python benchmarks/workloads.py [NAME ...] [--device cuda] [--passes 20]

Three arms for each pair, each a process of its own with caches of its own: the original
in eager, the original compiled, the cured form compiled, on calls of the same shapes.
An arm runs its calls once to compile (a pass) and once more to settle, then waits.
Several do that at a time; when all of them are ready, passes are timed, synchronised,
one arm after the other.

Rows go to benchmarks/results/workloads-DEVICE.json as they end; a row that is there is
not measured again, but for `--again`. An arm that fails leaves its error as its row.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from torchproof.targets.workloads import WORKLOADS

RESULTS = Path(__file__).resolve().parent / "results"
LEAST_PASSES, ENOUGH_S = 5, 6.0
READY = "ready to be timed"
PAIRS = [name for name in WORKLOADS if f"{name}-original" in WORKLOADS]
# The two forms of gpt have calls of different shapes where none is given.
SHAPES = {"cpu": {"batch": 4, "sequence": 160}, "cuda": {"batch": 8, "sequence": 1024}}


class Arm(NamedTuple):
    """One form of a workload, run in one way."""

    workload: str
    strategy: str
    train: bool

    @property
    def key(self) -> str:
        return f"{self.workload} {self.strategy}{' train' if self.train else ''}"


def arms(names: list[str]) -> list[Arm]:
    return [
        Arm(f"{name}{form}", strategy, train)
        for name in names
        # A training step trains with and without `train`: once is enough.
        for train in ((True,) if name == "trainstep" else (False, True))
        for form, strategy in (
            ("-original", "eager"),
            ("-original", "compiled"),
            ("", "compiled"),
        )
    ]


# -- in the arm's process --------------------------------------------------------------


def one_pass(fn: Any, calls: list[Any], *, train: bool) -> None:
    if hasattr(fn, "restart"):
        fn.restart()
    for call in calls:
        output = fn(**call) if isinstance(call, dict) else fn(*call)
        if not train or getattr(type(fn), "trains_itself", False):
            continue
        (output.loss if hasattr(output, "loss") else output.float().mean()).backward()


def synchronize(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def measure(arm: Arm, device: str, passes: int) -> dict[str, Any]:
    """Milliseconds a call in each timed pass; the parent says when to time them."""
    import torch

    workload = WORKLOADS[arm.workload]
    size = workload.size_on(device)
    make = importlib.import_module(workload.module).make
    given = SHAPES[device] if arm.workload.startswith("gpt") else {}
    fn, calls = make(size, device=device, train=arm.train, **given)
    run = fn
    if arm.strategy == "eager":
        torch.compiler.set_stance("force_eager")
    elif not getattr(type(fn), "compiles_itself", False):
        run = torch.compile(fn)

    def timed() -> float:
        if arm.train and isinstance(fn, torch.nn.Module):
            fn.zero_grad(set_to_none=True)
        synchronize(device)
        start = time.perf_counter()
        one_pass(run, calls, train=arm.train)
        synchronize(device)
        return time.perf_counter() - start

    for _ in range(2):
        timed()
    print(READY, flush=True)
    sys.stdin.readline()
    timed()
    seconds: list[float] = []
    while len(seconds) < LEAST_PASSES or (
        len(seconds) < passes and sum(seconds) < ENOUGH_S
    ):
        seconds.append(timed())
    return {
        **arm._asdict(),
        "size": size,
        "calls": len(calls),
        "given": given,
        **spread([1000 * each / len(calls) for each in seconds]),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "arch": platform.machine(),
        "cores": os.cpu_count(),
    }


def spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {
        "passes": len(values),
        "median_ms": middle,
        "low_ms": low,
        "high_ms": high,
    }


# -- in the parent ---------------------------------------------------------------------


class Running:
    """An arm's process, which compiles, says that it is ready, and waits."""

    def __init__(self, arm: Arm, options: argparse.Namespace, folder: Path) -> None:
        self.arm = arm
        cache = folder / arm.key.replace(" ", "-")
        cache.mkdir()
        self.errors = (cache / "stderr").open("w+")
        self.process = subprocess.Popen(
            [
                *(sys.executable, __file__, "--arm"),
                json.dumps([*arm, options.device, options.passes]),
            ],
            env={
                **os.environ,
                "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
                "TRITON_CACHE_DIR": str(cache / "triton"),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:  # a workload may print as well
            if line.strip() == READY:
                return

    def row(self) -> dict[str, Any]:
        answer, _ = self.process.communicate("go\n")
        if self.process.returncode == 0:
            row: dict[str, Any] = json.loads(answer.splitlines()[-1])
            return row
        self.errors.seek(0)
        lines = [line for line in self.errors.read().splitlines() if line.strip()]
        told = next((ln for ln in reversed(lines) if "Error" in ln), lines[-1])
        return {**self.arm._asdict(), "failure": told.partition(". Stack trace")[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=PAIRS, metavar="NAME")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1, help="arms at a time")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where to write")
    parser.add_argument("--again", action="store_true", help="also what is there")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        *arm, device, passes = json.loads(options.arm)
        print(json.dumps(measure(Arm(*arm), device, passes)))
        return 0
    kept: dict[str, Any] = {"rows": {}}
    path = options.folder / f"workloads-{options.device}.json"
    if path.is_file():
        kept = json.loads(path.read_text())
    command = (
        f"python benchmarks/workloads.py {' '.join(options.names)} --device"
        f" {options.device} --jobs {options.jobs} --passes {options.passes}"
    )
    wanted = arms(options.names)
    left = [arm for arm in wanted if options.again or arm.key not in kept["rows"]]
    for first in range(0, len(left), options.jobs):
        with tempfile.TemporaryDirectory() as folder:
            group = left[first : first + options.jobs]
            started = [Running(arm, options, Path(folder)) for arm in group]
            for running in started:
                running.wait_until_ready()
            for running in started:
                row = {"command": command, **running.row()}
                kept["rows"][running.arm.key] = row
                told = f"{row['median_ms']:.2f} ms" if "failure" not in row else "fails"
                print(f"{running.arm.key}: {told}", flush=True)
                path.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
