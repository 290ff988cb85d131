"""What a call of `torchproof.compile` adds to the bare callable of `torch.compile`.

    python -m benchmarks.call_overhead [--quick] [--processes 5]

Two callables take turns in one process: the same work, compiled by the one and by the
other with the same backend, called in batches that are timed as a whole. Pairs in which
the process had to yield its core are left out, and the fastest twentieth of the batches
of either are compared. Where a process has its code and data in memory moves that by a
microsecond, so the median of several processes counts.

A function, a method and a module are compiled whole; of a model its two blocks are; and
with `strategy="eager"` each is compared with what it is. A function and a module are
also measured with each option that touches a call. The limit holds per callable that
torch.compile returned. `import` is what loading the runtime adds to `import torch`.
Exit code 1 when a call takes more than 2 us longer or loading more than 50 ms.
"""

from __future__ import annotations

import copy
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

import torchproof
from benchmarks.survey import Options, Row, Survey, answer
from benchmarks.timing import in_turns
from torchproof.records import stats

LIMIT_US = 2.0
LIMIT_IMPORT_MS = 50.0
CALLS = 40  # of a batch; short, so that some are undisturbed
PATIENCE_S = 20.0
PAIRS, FEWEST, PROCESSES = 60, 20, 5
QUICK_PAIRS, QUICK_PROCESSES = 40, 3
WARM_CALLS = 1200
EXCEPTED = ("regional", "strategy eager", ", eager", "aot_eager")
BACKENDS = ("eager", "aot_eager", "inductor")

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


OPTIONS: dict[str, dict[str, Any]] = {
    "wait=False": {"wait": False},
    "on_event": {"on_event": lambda kind, record: None},
}
OPTIONS["all of them"] = {name: o[name] for o in OPTIONS.values() for name in o}


def made(kind: str) -> Any:
    """A function, method or module with code of its own."""
    if kind == "module":
        return type("Net", (Net,), {"forward": of_its_own(Net.forward)})()
    return method() if kind == "method" else of_its_own(add_one)


def pair_of(name: str) -> Pair:
    """What a row names, as torch.compile and as torchproof.compile give it back."""
    kind, _, variant = name.partition(", ")
    if kind == "regional":
        return regional(name.rpartition(", ")[2])
    if variant == "strategy eager":  # against the same as it is
        plain = made(kind)
        return Pair(plain, torchproof.compile(copy.deepcopy(plain), strategy="eager"))
    backend = variant if variant in BACKENDS else BACKENDS[-1]
    ours: Any = functools.partial(torchproof.compile, backend=backend)
    return Pair(
        torch.compile(made(kind), backend=backend),
        ours(made(kind), **OPTIONS.get(variant, {})),
    )


def wait_for_code(run: Run, x: Tensor) -> None:
    """Calls until what is compiled in the background is in use."""
    run(x)
    end = time.monotonic() + PATIENCE_S
    while torchproof.status(run).pending and time.monotonic() < end:
        time.sleep(0.05)
    run(x)


def batch_us(run: Run, x: Tensor) -> float:
    """Microseconds a call, of a loop that does nothing else."""
    begin = time.perf_counter_ns()
    for _ in range(CALLS):
        run(x)
    return (time.perf_counter_ns() - begin) / 1e3 / CALLS


def measure_pair(pair: Pair, count: int) -> dict[str, list[list[float]]]:
    """Undisturbed pairs of batches; each value is a round of its own."""
    x = torch.ones(2, 4)
    wait_for_code(pair.ours, x)
    for _ in range(WARM_CALLS):
        pair.ours(x)
    for run in (pair.bare, pair.ours) * 3:
        batch_us(run, x)
    pairs = in_turns(
        lambda: batch_us(pair.ours, x),
        lambda: batch_us(pair.bare, x),
        count,
        PATIENCE_S,
    )
    return {
        "ours": [[ours] for ours, _ in pairs],
        "bare": [[bare] for _, bare in pairs],
    }


def quiet_us(batches: dict[str, list[list[float]]]) -> float:
    """Microseconds added, of the fastest batches: other work only makes them longer."""
    ours, bare = (
        sorted(each[0] for each in batches[name]) for name in ("ours", "bare")
    )
    index = len(ours) // 20
    return ours[index] - bare[index]


def of_processes(every: list[Row]) -> Row:
    """The same measurement of several processes as one."""
    batches = [each["batches"] for each in every]
    if min(len(each["bare"]) for each in batches) < FEWEST:
        return {"error": "too few undisturbed pairs"}
    quiet = [quiet_us(each) for each in batches]
    compiled = every[0]["compiled"]
    bare = [round_us for each in batches for round_us in each["bare"]]
    return {
        "pairs": len(bare),
        "bare_us": stats.summarise(bare).median,
        "added_us": {
            "quiet": statistics.median(quiet),
            "low_process": min(quiet),
            "high_process": max(quiet),
        },
        "compiled_callables": compiled,
        "per_callable_us": statistics.median(quiet) / compiled,
    }


def in_this_process(names: list[str], count: int) -> dict[str, Row]:
    """The batches of these calls."""
    found: dict[str, Row] = {}
    with torch.no_grad():
        for name in names:
            pair = pair_of(name)
            batches = measure_pair(pair, count)
            found[name] = {"batches": batches, "compiled": pair.compiled}
            status = torchproof.status(pair.ours)
            if status.strategy == "eager":
                assert status.compiled_calls == 0 and status.calls > CALLS, str(status)
            else:  # a regional one watches its first call, wait=False its first ones
                assert status.compiled_calls >= status.calls - 2, str(status)
    return found


@functools.cache
def in_processes(
    names: tuple[str, ...], processes: int, count: int
) -> list[dict[str, Row]]:
    """What each of several processes measured, one after another."""
    program = (
        "import json; from benchmarks.call_overhead import in_this_process;"
        f" print(json.dumps(in_this_process({list(names)}, {count})))"
    )
    return [json.loads(answer("-c", program)) for _ in range(processes)]


IMPORT = """
import time, torch
begin = time.perf_counter()
import torchproof.runtime
print((time.perf_counter() - begin) * 1e3)
"""


def import_ms(processes: int) -> Row:
    """What loading the runtime adds where torch is loaded."""
    times = [float(answer("-c", IMPORT)) for _ in range(processes)]
    return {
        "median_ms": statistics.median(times),
        "low": min(times),
        "high": max(times),
    }


def rows(options: Options) -> list[str]:
    names = [f"{kind}, strategy eager" for kind in ("function", "method", "module")]
    kinds = ("function", "method", "module", "regional, two blocks")
    names += [f"{kind}, {backend}" for backend in BACKENDS for kind in kinds]
    names += [f"{kind}, {name}" for name in OPTIONS for kind in ("function", "module")]
    return [*names, "import"]


def measure(name: str, options: Options) -> Row:
    if name == "import":
        return import_ms(3 if options.quick else 7)
    processes = options.processes or (QUICK_PROCESSES if options.quick else PROCESSES)
    names = tuple(each for each in options.names if each != "import")
    every = in_processes(names, processes, QUICK_PAIRS if options.quick else PAIRS)
    return of_processes([each[name] for each in every])


def failures(found: dict[str, Row]) -> Iterator[str]:
    for name, row in found.items():
        if name == "import":
            if row["median_ms"] > LIMIT_IMPORT_MS:
                yield f"loading the runtime takes {row['median_ms']:.0f} ms"
        elif row["per_callable_us"] > LIMIT_US and not _is_excepted(name):
            yield f"{name}: {row['per_callable_us']:.2f} us added, at most {LIMIT_US}"


def _is_excepted(name: str) -> bool:
    """Whether docs/reference/reliability.md says that the limit is not met, and why."""
    return any(each in name for each in EXCEPTED)


SURVEY = Survey(
    "call_overhead",
    rows,
    measure,
    failures,
    quick=("function, inductor", "method, inductor", "module, inductor", "import"),
    is_isolated=False,
    flags={
        "--processes": {"type": int, "help": f"default {PROCESSES}"},
    },
)

if __name__ == "__main__":
    sys.exit(SURVEY.main())
