"""How many of a step's kernels come out of CUDA graphs.

Comes in: a step to run once more. Goes out: its kernels, and those of them that a graph
launched, as torch's profiler saw them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")
_BEFORE = 2  # a graph is warmed up, then recorded, and replayed from then on


class Kernels(NamedTuple):
    """Kernels of a step, and those replayed from graphs."""

    all: int
    replayed: int


def profiled(run: Callable[[], object]) -> Kernels:
    """Runs a step until it is recorded, then under the profiler.

    No kernels are known of a step that does not run again.
    """
    import torch

    kinds = torch.profiler.ProfilerActivity
    try:
        for _ in range(_BEFORE):
            run()
        with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
            run()
            torch.cuda.synchronize()
    except Exception:
        return Kernels(0, 0)
    with tempfile.TemporaryDirectory(prefix="torchproof-") as scratch:
        path = Path(scratch) / "trace.json"
        profile.export_chrome_trace(str(path))
        return counted(json.loads(path.read_text())["traceEvents"])


def counted(trace: Iterable[Mapping[str, Any]]) -> Kernels:
    """A kernel carries the number of the call of CUDA that launched it."""
    kernels: list[Any] = []
    launches: set[Any] = set()
    for event in trace:
        number = event.get("args", {}).get("correlation")
        if event.get("cat") == "kernel":
            kernels.append(number)
        elif event.get("name", "").startswith(_LAUNCHES):
            launches.add(number)
    return Kernels(len(kernels), sum(number in launches for number in kernels))
