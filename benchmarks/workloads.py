"""What the cures of the workloads are worth: originals and cured forms, timed.

    python benchmarks/workloads.py [NAME ...] [--device cuda] [--passes 20]

Three arms for each pair, each a process of its own: the original in eager, the original
compiled, the cured form compiled, on calls of the same shapes. An arm runs its calls
once to compile (a pass) and once more to settle; then passes are timed, synchronised.
Arms compile before anything is timed, several at a time, each into a cache of its own;
then they are timed one after the other.

Rows go to benchmarks/results/workloads-DEVICE.json as they end; a row that is there is
not measured again.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from torchproof.workloads import WORKLOADS

RESULTS = Path(__file__).resolve().parent / "results"
PAIRS = [name for name in WORKLOADS if f"{name}-original" in WORKLOADS]
# The two forms of gpt have calls of different shapes where none is given.
GIVEN = {"gpt": {"batch": 8, "sequence": 1024}}


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


def measure(arm: Arm, device: str, passes: int) -> dict[str, Any]:
    """Milliseconds a call of each timed pass, and the seconds of the first pass."""
    import torch

    def timed(act: Callable[[], None]) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        act()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    workload = WORKLOADS[arm.workload]
    size = workload.size_on(device)
    make = importlib.import_module(workload.module).make
    given = GIVEN.get(arm.workload.removesuffix("-original"), {})
    fn, calls = make(size, device=device, train=arm.train, **given)
    run = fn
    if arm.strategy == "eager":
        torch.compiler.set_stance("force_eager")
    elif not getattr(type(fn), "compiles_itself", False):
        run = torch.compile(fn)

    def act() -> None:
        if arm.train and isinstance(fn, torch.nn.Module):
            fn.zero_grad(set_to_none=True)
        one_pass(run, calls, train=arm.train)

    first = timed(act)
    timed(act)
    seconds = [timed(act) for _ in range(passes)]
    return {
        "key": arm.key,
        **arm._asdict(),
        "size": size,
        "calls": len(calls),
        "given": given,
        "first_pass_s": first,
        "call_ms": [1000 * each / len(calls) for each in seconds],
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": str(torch.__version__),
    }


# -- in the parent ---------------------------------------------------------------------


def run_arm(arm: Arm, options: argparse.Namespace, caches: Path, passes: int) -> Any:
    """The arm's row; None, with a line on stderr, where it fails."""
    cache = caches / arm.key.replace(" ", "-")
    told = json.dumps([*arm, options.device, passes])
    done = subprocess.run(
        [sys.executable, __file__, "--arm", told],
        env={
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"{arm.key} failed:\n{done.stderr[-1500:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def summary(row: dict[str, Any]) -> dict[str, Any]:
    values = row.pop("call_ms")
    low, middle, high = statistics.quantiles(values, n=4)
    return {
        **row,
        "passes": len(values),
        "median_ms": middle,
        "low_ms": low,
        "high_ms": high,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=PAIRS, metavar="NAME")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1, help="arms to compile at once")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where to write")
    parser.add_argument("--caches", type=Path, help="keep the compiled code there")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        *arm, device, passes = json.loads(options.arm)
        print(json.dumps(measure(Arm(*arm), device, passes)))
        return 0
    kept: dict[str, Any] = {"command": " ".join(["python", *sys.argv]), "rows": {}}
    path = options.folder / f"workloads-{options.device}.json"
    if path.is_file():
        kept = json.loads(path.read_text())
    left = [arm for arm in arms(options.names) if arm.key not in kept["rows"]]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        caches = options.caches or Path(folder)
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda arm: run_arm(arm, options, caches, 2), left))
        for arm in left:
            row = run_arm(arm, options, caches, options.passes)
            if not row:
                failed += 1
                continue
            kept["rows"][arm.key] = summary(row)
            print(f"{arm.key}: {kept['rows'][arm.key]['median_ms']:.1f} ms a call")
            path.write_text(json.dumps(kept, indent=1) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
