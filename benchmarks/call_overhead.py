"""What a call of `torchproof.compile` adds to the bare callable of `torch.compile`.

Two callables take turns in one process: the same work, compiled by the one and by the
other with the same backend, called in batches that are timed as a whole. Pairs in which
the process had to yield its core are left out, and the fastest twentieth of the batches
of either are compared. Where a process has its code and data in memory moves that by a
microsecond, so the median of several processes counts.

A function, a method and a module are compiled whole; of a model its two blocks are; and
with `strategy="eager"` each is compared with what it is. A function and a module are
also measured with each option that touches a call. The limit holds per callable that
torch.compile returned: a call of the model with two compiled blocks may take twice as
much. What loading the runtime adds to `import torch` is timed in other processes.

    python -m benchmarks.call_overhead [--pairs 60] [--processes 5] [--write]

Exit code 1 when a call takes more than 2 us longer or loading more than 50 ms, 2 when
the machine is too busy to say.
"""

import argparse
import copy
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

import torchproof
from torchproof.measure import profiling
from torchproof.records import stats
from torchproof.runtime import monitor

LIMIT_US = 2.0
LIMIT_IMPORT_MS = 50.0
CALLS = 40  # of a batch; short, so that some are undisturbed
PATIENCE_S = 120.0
FEWEST = 20  # pairs
WARM_CALLS = 1200
BACKENDS = ["eager", "aot_eager", "inductor"]
HERE = Path(__file__).resolve().parent

Run = Callable[[Tensor], Any]


@dataclass(frozen=True)
class Pair:
    """The same work, called through torch.compile and through torchproof.compile."""

    bare: Run
    ours: Run
    compiled: int = 1  # callables of torch.compile in a call of `bare`


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.mix(x))


class Holder:
    amount = 1

    def add(self, x: Tensor) -> Tensor:
        return x + self.amount


def add_one(x: Tensor) -> Tensor:
    return x + 1


def of_its_own(function: Any) -> Any:
    """The same function with code of its own: compiled code is kept with the code."""
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, function.__name__)


def method() -> Run:
    kind = type("Holder", (Holder,), {"add": of_its_own(Holder.add)})
    run: Run = kind().add
    return run


def regional(backend: str) -> Pair:
    """Blocks that are compiled one by one; the model around them is not."""
    bare = nn.Sequential(Net(), Net())
    for block in bare:
        block.forward = torch.compile(block.forward, backend=backend)
    kind = type("Block", (Net,), {"forward": of_its_own(Net.forward)})
    ours = nn.Sequential(kind(), kind())
    model = torchproof.compile(ours, strategy="regional", backend=backend)
    return Pair(bare, model, compiled=len(bare))


def pairs(backend: str) -> dict[str, Pair]:
    """What is compiled, as each of the two gives it back."""
    ours = functools.partial(torchproof.compile, backend=backend)
    bare = functools.partial(torch.compile, backend=backend)
    return {
        f"function, {backend}": Pair(bare(add_one), ours(of_its_own(add_one))),
        f"method, {backend}": Pair(bare(method()), ours(method())),
        f"module, {backend}": Pair(bare(Net()), ours(Net())),
        f"regional, two blocks, {backend}": regional(backend),
    }


OPTIONS: dict[str, dict[str, Any]] = {
    "wait=False": {"wait": False},
    "monitor": {"monitor": True},
    "on_event": {"on_event": lambda kind, record: None},
}
OPTIONS["all of them"] = {name: o[name] for o in OPTIONS.values() for name in o}


def option_pairs(backend: str) -> dict[str, Pair]:
    """A function and a module with each option, once they run compiled code."""
    found: dict[str, Pair] = {}
    for name, options in OPTIONS.items():
        ours: Any = functools.partial(torchproof.compile, backend=backend, **options)
        bare = functools.partial(torch.compile, backend=backend)
        kind = type("Net", (Net,), {"forward": of_its_own(Net.forward)})
        found |= {
            f"function, {name}": Pair(
                bare(of_its_own(add_one)), ours(of_its_own(add_one))
            ),
            f"module, {name}": Pair(bare(Net()), ours(kind())),
        }
    found["function, monitor, first 1,000 calls"] = each_call_timed(backend)
    return found


def each_call_timed(backend: str) -> Pair:
    """A monitored function as in its first calls, which are all timed."""
    usual = monitor._TIMED_FIRST
    monitor._TIMED_FIRST = sys.maxsize
    try:
        ours = torchproof.compile(of_its_own(add_one), backend=backend, monitor=True)
        ours(torch.ones(2, 4))
    finally:
        monitor._TIMED_FIRST = usual
    return Pair(torch.compile(of_its_own(add_one), backend=backend), ours)


def wait_for_code(run: Run, x: Tensor) -> None:
    """Calls until what is compiled in the background is in use."""
    run(x)
    end = time.monotonic() + PATIENCE_S
    while torchproof.status(run).pending and time.monotonic() < end:
        time.sleep(0.05)
    run(x)


def eager_pairs() -> dict[str, Pair]:
    """What `strategy="eager"` runs, and the same as it is."""
    ours = functools.partial(torchproof.compile, strategy="eager")
    module, holder = Net(), Holder()
    return {
        "function, strategy eager": Pair(add_one, ours(add_one)),
        "method, strategy eager": Pair(holder.add, ours(holder.add)),
        "module, strategy eager": Pair(module, ours(copy.deepcopy(module))),
    }


def batch_us(run: Run, x: Tensor) -> float:
    """Microseconds a call, of a loop that does nothing else."""
    begin = time.perf_counter_ns()
    for _ in range(CALLS):
        run(x)
    return (time.perf_counter_ns() - begin) / 1e3 / CALLS


def measure(pair: Pair, count: int) -> dict[str, list[list[float]]]:
    """Undisturbed pairs of batches; each value is a round of its own."""
    x = torch.ones(2, 4)
    wait_for_code(pair.ours, x)
    for _ in range(WARM_CALLS):  # a monitor times each of the first calls
        pair.ours(x)
    for run in (pair.bare, pair.ours) * 3:
        batch_us(run, x)
    found: dict[str, list[list[float]]] = {"bare": [], "ours": []}
    end = time.monotonic() + PATIENCE_S
    while len(found["bare"]) < count and time.monotonic() < end:
        before, ours_first = profiling.context_switches(), len(found["bare"]) % 2
        first = batch_us(pair.ours if ours_first else pair.bare, x)
        second = batch_us(pair.bare if ours_first else pair.ours, x)
        if profiling.context_switches() == before:
            ours, bare = (first, second) if ours_first else (second, first)
            found["ours"].append([ours])
            found["bare"].append([bare])
    return found


def of_processes(every: list[dict[str, Any]]) -> dict[str, Any]:
    """The same measurement of several processes as one."""
    batches = [each["batches"] for each in every]
    pooled = summary(
        {name: [row for each in batches for row in each[name]] for name in batches[0]}
    )
    quiet = [summary(each)["added_us"]["quiet"] for each in batches]
    pooled["added_us"] |= {
        "quiet": statistics.median(quiet),
        "low_process": min(quiet),
        "high_process": max(quiet),
    }
    compiled = every[0]["compiled"]
    per_callable = pooled["added_us"]["quiet"] / compiled
    return pooled | {"compiled_callables": compiled, "per_callable_us": per_callable}


def summary(found: dict[str, list[list[float]]]) -> dict[str, Any]:
    added = [
        ours[0] - bare[0]
        for ours, bare in zip(found["ours"], found["bare"], strict=True)
    ]
    ratio = stats.compare(found["ours"], found["bare"], variation=0.0)
    quarters = statistics.quantiles(added, n=4)
    # Whatever else runs on the machine makes a batch longer, never shorter.
    ours, bare = (sorted(row[0] for row in found[name]) for name in ("ours", "bare"))
    quiet = len(added) // 20
    return {
        "pairs": len(added),
        "bare_us": stats.summarise(found["bare"]).median,
        "ours_us": stats.summarise(found["ours"]).median,
        "added_us": {
            "quiet": ours[quiet] - bare[quiet],
            "median": statistics.median(added),
            "low_quarter": quarters[0],
            "high_quarter": quarters[2],
        },
        "ratio": {"value": ratio.value, "low": ratio.low, "high": ratio.high},
    }


IMPORT = """
import time, torch
begin = time.perf_counter()
import torchproof.runtime
print((time.perf_counter() - begin) * 1e3)
"""


def import_ms(processes: int = 7) -> list[float]:
    """What loading the runtime adds where torch is loaded, one value a process."""
    command = [sys.executable, "-c", IMPORT]
    return [
        float(subprocess.run(command, capture_output=True, check=True).stdout)
        for _ in range(processes)
    ]


def report(numbers: dict[str, Any], imports_ms: list[float]) -> dict[str, Any]:
    return {
        "machine": {"arch": platform.machine(), "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "calls": numbers,
        "limit_us": LIMIT_US,
        "import_ms": {
            "median": statistics.median(imports_ms),
            "low": min(imports_ms),
            "high": max(imports_ms),
        },
        "limit_import_ms": LIMIT_IMPORT_MS,
    }


def measured(pairs_each: int, backends: list[str]) -> dict[str, Any]:
    """The batches of everything, in this process."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        every = eager_pairs()
        for backend in backends:
            every |= pairs(backend)
        every |= option_pairs(backends[-1])
        for name, pair in every.items():
            batches = measure(pair, pairs_each)
            found[name] = {"batches": batches, "compiled": pair.compiled}
            told = torchproof.status(pair.ours)
            if told.strategy == "eager":
                assert told.compiled_calls == 0 and told.calls > CALLS, str(told)
            else:  # a regional one watches its first call, wait=False its first ones
                assert told.compiled_calls >= told.calls - 2, str(told)
    return found


def in_processes(count: int, pairs_each: int, backends: list[str]) -> Any:
    """What each of several processes measured, one after another."""
    command = [sys.executable, "-m", "benchmarks.call_overhead", "--child"]
    command += ["--pairs", str(pairs_each), "--backends", *backends]
    for _ in range(count):
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        yield json.loads(done.stdout)


def tell(numbers: dict[str, Any]) -> None:
    for name, row in numbers.items():
        added = row["added_us"]
        print(
            f"{name:<32} bare {row['bare_us']:.2f} us, added {added['quiet']:.2f} us;"
            f" processes {added['low_process']:.2f} to {added['high_process']:.2f},"
            f" per callable {row['per_callable_us']:.2f}, {row['pairs']} pairs"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=int, default=60, help="of each process")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--backends", nargs="+", default=BACKENDS)
    parser.add_argument("--write", action="store_true", help="keep the numbers")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measured(arguments.pairs, arguments.backends)))
        return 0

    imports_ms = import_ms()
    every = list(in_processes(arguments.processes, arguments.pairs, arguments.backends))
    for name in every[0]:
        if min(len(each[name]["batches"]["bare"]) for each in every) < FEWEST:
            print(f"{name}: too few undisturbed pairs", file=sys.stderr)
            return 2
    numbers = {name: of_processes([each[name] for each in every]) for name in every[0]}
    kept = report(numbers, imports_ms) | {"processes": arguments.processes}
    tell(numbers)
    print(f"loading the runtime: {kept['import_ms']['median']:.1f} ms after torch")
    if arguments.write:
        path = HERE / "results" / f"call-overhead-{platform.machine()}.json"
        path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        print(f"written to {path}", file=sys.stderr)
    too_slow = max(row["per_callable_us"] for row in numbers.values()) > LIMIT_US
    return int(too_slow or kept["import_ms"]["median"] > LIMIT_IMPORT_MS)


if __name__ == "__main__":
    sys.exit(main())
