"""Device memory until a step is recorded: eager, reduce-overhead, and graphs.

    python -m benchmarks.start_memory [ROW ...] [--arms ARM,...] [--jobs N]
        [--out FILE] [--again]

Each arm runs in a process of its own with empty caches of the compiler, N at a time.
It calls the step until the step is recorded, and notes at each point the memory that is
reserved and allocated then, and the largest since the point before. The points inside a
recording show which part of it needs the memory. An arm goes to FILE as it ends, and
one that is there is left out. Exit code 1 when the peak of a graph is more than LIMIT
times that of reduce-overhead.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks import first_seconds

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "start-memory-h200.json"
GRAPHS = {"full+graph": "full", "regional+graph": "regional", "wait=False": None}
ARMS = ("eager", "reduce-overhead", *GRAPHS)
LARGE = "gpt-40b"  # 79 GB of weights: alone on the device
ROWS = (*first_seconds.ROWS, LARGE)
LARGE_ARMS = ("eager", "regional+graph")
LIMIT = 1.15
CALLS = 3  # reduce-overhead warms up, records, and replays
PATIENCE_S = 150.0  # until the last stage of wait=False
# Parts of a recording, in order: the point is noted when the method has returned.
PARTS = {
    "_watched_run": "eager run",
    "_rehearse": "rehearsal",
    "undo": "state restored",
    "_recorded": "capture",
    "_first_replay": "comparison",
}

Row = dict[str, Any]


# -- one arm, in a process of its own --------------------------------------------------


class Points:
    """The memory at named points, and the largest between each and the one before."""

    def __init__(self) -> None:
        self.found: list[Row] = []
        torch.cuda.reset_peak_memory_stats()

    def note(self, name: str) -> None:
        self.found.append(
            {
                "point": name,
                "reserved": torch.cuda.memory_reserved(),
                "allocated": torch.cuda.memory_allocated(),
                "peak_reserved": torch.cuda.max_memory_reserved(),
                "peak_allocated": torch.cuda.max_memory_allocated(),
            }
        )
        torch.cuda.reset_peak_memory_stats()

    def peak(self, what: str, until: str | None = None) -> int:
        names = [each["point"] for each in self.found]
        end = len(names) if until is None else names.index(until) + 1
        return max(int(each[f"peak_{what}"]) for each in self.found[:end])

    @contextlib.contextmanager
    def inside_recordings(self) -> Iterator[None]:
        from torchproof.runtime.cudagraph import recorder

        attempt = recorder._Attempt
        with contextlib.ExitStack() as stack:
            for method, name in PARTS.items():
                noted = self._noted(getattr(attempt, method), name)
                stack.enter_context(mock.patch.object(attempt, method, noted))
            yield

    def _noted(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def noted(*args: Any, **kwargs: Any) -> Any:
            self.note(f"before {name}")
            try:
                return method(*args, **kwargs)
            finally:
                self.note(name)

        return noted


def made(name: str) -> tuple[Callable[..., Any], tuple[Any, ...], bool]:
    torch.manual_seed(0)
    if name == LARGE:
        from torchproof.targets.workloads import gpt

        model, calls = gpt.make("40b", 1, 512, device="cuda")
        return model, calls[0], False
    make, call, trains = first_seconds.ROWS[name]
    network = make().to("cuda", torch.bfloat16).train(trains)
    step = first_seconds.training(network) if trains else network
    return step, call(), trains


def measured(name: str, arm: str) -> Row:
    step, args, trains = made(name)
    torch.set_grad_enabled(trains)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    points = Points()
    points.note("start")
    with points.inside_recordings() if arm in GRAPHS else contextlib.nullcontext():
        status = called(step, args, arm, points)
    return {
        "first_call_reserved": points.peak("reserved", "call 1"),
        "first_call_allocated": points.peak("allocated", "call 1"),
        "reserved": points.peak("reserved"),
        "allocated": points.peak("allocated"),
        **status,
        "points": points.found,
    }


def called(
    step: Callable[..., Any], args: tuple[Any, ...], arm: str, points: Points
) -> Row:
    """Calls the step until it is recorded; what its status says then."""
    graphed: Any = None
    if arm == "reduce-overhead":
        step = torch.compile(step, mode="reduce-overhead")
    elif arm in GRAPHS:
        import torchproof

        wait = arm != "wait=False"
        graphed = torchproof.graph(step, strategy=GRAPHS[arm], wait=wait)
        step = graphed
    begin = time.monotonic()
    for number in itertools.count(1):
        step(*args)
        torch.cuda.synchronize()
        if number <= CALLS:
            points.note(f"call {number}")
        waited = time.monotonic() - begin > PATIENCE_S
        if number >= CALLS and (graphed is None or graphed.is_compiled or waited):
            break
    points.note("end")
    if graphed is None:
        return {}
    status = graphed.status()
    return {
        "recordings": status.recordings,
        "pool_bytes": status.pool_bytes,
        "stops": [str(each) for each in status.stops],
        "stages": status.to_json()["stages"],
    }


# -- all arms --------------------------------------------------------------------------


def in_process(name: str, arm: str) -> Row:
    with tempfile.TemporaryDirectory() as caches:
        variables = {
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
            "TRITON_CACHE_DIR": f"{caches}/triton",
        }
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.start_memory", "--arm", arm, name],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **variables},
        )
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def ratios(arms: dict[str, Row]) -> dict[str, float | None]:
    """The peak of each graph against that of reduce-overhead; None if not known."""
    theirs = arms.get("reduce-overhead", {}).get("reserved")
    peaks = {arm: arms.get(arm, {}).get("reserved") for arm in GRAPHS}
    return {
        arm: ours / theirs if ours and theirs else None for arm, ours in peaks.items()
    }


def shown(name: str, arm: str, row: Row) -> str:
    if "error" in row:
        return f"{name:<26}{arm:<16}{row['error']}"
    mib = [
        row[each] >> 20
        for each in ("first_call_reserved", "reserved", "allocated")
        if row[each] is not None
    ]
    figures = "".join(f"{each:>8}" for each in mib)
    return f"{name:<26}{arm:<16}{figures}  {'; '.join(row.get('stops', []))}"


def missing(
    rows: dict[str, Row], names: list[str], arms: list[str], *, again: bool
) -> Iterator[tuple[str, str]]:
    for name in names:
        known = rows.setdefault(name, {"arms": {}})["arms"]
        for arm in arms or (LARGE_ARMS if name == LARGE else ARMS):
            if again or arm not in known or "error" in known[arm]:
                yield name, arm


def main() -> int:
    options = parsed()
    if options.arm is not None:
        print(json.dumps(measured(options.rows[0], options.arm)))
        return 0
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    rows = known.setdefault("rows", {})
    known |= {
        "command": "python -m benchmarks.start_memory",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    arms = options.arms.split(",") if options.arms else []
    work = list(missing(rows, options.rows or [*ROWS], arms, again=options.again))

    writing = threading.Lock()

    def measure(one: tuple[str, str]) -> None:
        name, arm = one
        row = in_process(name, arm)
        with writing:
            rows[name]["arms"][arm] = row
            rows[name]["ratios"] = ratios(rows[name]["arms"])
            options.out.write_text(json.dumps(known, indent=1) + "\n")
            print(shown(name, arm, row), file=sys.stderr, flush=True)

    print(f"{'MiB':<42}  first    peak   alloc", file=sys.stderr)
    with ThreadPoolExecutor(options.jobs) as together:
        list(together.map(measure, [one for one in work if one[0] != LARGE]))
    for one in work:
        if one[0] == LARGE:
            measure(one)
    for name, row in rows.items():
        print(name, json.dumps(row.get("ratios", {})), file=sys.stderr)
    peaks = [each for row in rows.values() for each in row.get("ratios", {}).values()]
    return int(any(each is not None and each > LIMIT for each in peaks))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", default=[])
    parser.add_argument("--arms", help=", ".join(ARMS))
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--arm", choices=ARMS)
    options = parser.parse_args()
    for name, choices in (
        (options.rows, ROWS),
        ((options.arms or "").split(","), ARMS),
    ):
        if unknown := [each for each in name if each and each not in choices]:
            parser.error(f"no {unknown[0]!r}: choose from {', '.join(choices)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
