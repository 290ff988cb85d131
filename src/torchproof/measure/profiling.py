"""Clocks and gauges of a process that runs a target: time, memory, guards, kernels."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchproof.records import stats

LOOKUP = "TorchDynamo Cache Lookup"
_LATE_MS = 0.1  # to find all streams idle takes a tenth of that
_PROFILED_PASSES = (3, 30)  # at least, at most
_PROFILED_S = 0.3
_MOST_SAMPLES = 1000  # of one round
_GENERATED = "triton_"  # how the names of kernels begin that Inductor writes


class Clock:
    """Times one call: device events on CUDA, synchronised; a monotonic clock else."""

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cuda":
            import torch

            self._begin = torch.cuda.Event(enable_timing=True)
            self._end = torch.cuda.Event(enable_timing=True)

    def milliseconds(self, step: Callable[[], Any]) -> float:
        """What one step takes until its last kernel has ended, on whatever stream."""
        if self.device != "cuda":
            begin = time.perf_counter_ns()
            step()
            return (time.perf_counter_ns() - begin) / 1e6
        self._begin.record()
        step()
        self._end.record()
        self._end.synchronize()
        ended = time.perf_counter_ns()
        self.synchronise()  # events know of their own stream only
        late_ms = (time.perf_counter_ns() - ended) / 1e6
        elapsed = float(self._begin.elapsed_time(self._end))
        return elapsed + late_ms if late_ms > _LATE_MS else elapsed

    def seconds(self, step: Callable[[], Any]) -> float:
        """Wall time of a step, compilation included, until the device is done."""
        self.synchronise()
        begin = time.perf_counter()
        step()
        self.synchronise()
        return time.perf_counter() - begin

    def synchronise(self) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()


def yields() -> int:
    """How often this thread had to give up its core to another program."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def timed(
    run: Callable[[], float], count: int, seconds: float
) -> tuple[list[float], list[int]]:
    """Times per call of a pass over so many, again and again for a while.

    And how often the core was yielded before and after each.
    """
    times: list[float] = []
    taken = [yields()]
    begin, clean = time.monotonic(), 0
    while len(times) < _MOST_SAMPLES:
        times.append(run() / count)
        taken.append(yields())
        clean += taken[-1] == taken[-2]
        elapsed_ms = (time.monotonic() - begin) * 1e3
        if stats.round_is_over(elapsed_ms, clean, seconds * 1e3):
            break
    return times, taken


def wake(device: str) -> None:
    """The device's context and libraries, which no strategy is to pay for."""
    import torch

    if device == "cuda":
        for number_type in (torch.float32, torch.bfloat16):
            one = torch.ones(8, 8, device=device, dtype=number_type)
            (one @ one).sum().item()
    torch.ones(8, 8) @ torch.ones(8, 8)


def give_back() -> None:
    """Device memory that is kept for tensors to come."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def peak_memory(device: str, run: Callable[[], Any]) -> dict[str, int | None]:
    """The most memory a pass needs, in bytes; what was needed before is left out."""
    gauge: dict[str, int | None] = dict.fromkeys(
        ("cuda_allocated", "cuda_graph_pools", "cuda_reserved", "cuda_process")
    )
    if device == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
    resets = _reset_peak_rss()
    run()
    gauge["host_rss"] = _status("VmHWM" if resets else "VmRSS")
    if device == "cuda":
        torch.cuda.synchronize()
        gauge["cuda_allocated"] = torch.cuda.max_memory_allocated()
        gauge["cuda_graph_pools"] = _graph_pools()
        gauge["cuda_reserved"] = torch.cuda.max_memory_reserved()
        gauge["cuda_process"] = _process_vram()
    return gauge


def _graph_pools() -> int:
    """What CUDA graphs keep for their replays, which no longer counts as allocated."""
    import torch

    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
    )


def held(device: str) -> dict[str, int]:
    """Bytes this process holds, so that it is known how many like it have room."""
    vram = 0
    if device == "cuda":
        import torch

        vram = torch.cuda.memory_reserved()
    return {"host": _status("VmRSS") or 0, "cuda": vram}


def _reset_peak_rss() -> bool:
    """Linux forgets a process's highest RSS when 5 is written there."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB", _read("/proc/self/status"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _process_vram() -> int | None:
    """What the driver says this process holds, contexts and modules included."""
    told = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            ["nvidia-smi", *told], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    rows = [line.split(",") for line in answer.stdout.splitlines()]
    for row in rows:
        if len(row) == 2 and row[0].strip() == str(os.getpid()) and row[1].strip():
            return int(row[1]) * 2**20 if row[1].strip().isdigit() else None
    return None


def profile(
    device: str, run: Callable[[], Any], *, calls: int, trace: Path | None = None
) -> dict[str, Any]:
    """Guard lookups and kernels per call, as torch's profiler saw them.

    A run makes that many calls. With `trace`, the Chrome trace is kept there.
    """
    few, many = _PROFILED_PASSES
    begin = time.monotonic()
    run()
    fit = int(_PROFILED_S / (time.monotonic() - begin))
    count = few if trace else min(max(few, fit), many)
    events = observed(device, lambda: [run() for _ in range(count)], trace=trace)
    steps = count * calls
    lookups = [e.time_range.elapsed_us() for e in events if e.name == LOOKUP]
    found: dict[str, Any] = {"lookup_us": None, "lookup_range_us": None}
    found |= {"lookups": len(lookups) / steps, "kernels": None}
    if len(lookups) > 1:
        # Of one lookup, then of all that a step makes: a hiccup in one is not in all.
        first, middle, third = statistics.quantiles(lookups, n=4)
        found["lookup_us"] = middle * found["lookups"]
        found["lookup_range_us"] = [x * found["lookups"] for x in (first, third)]
    if device == "cuda":
        kernels = [e for e in device_events(events) if is_kernel(e)]
        found["kernels"] = len(kernels) / steps
        found["kernel_ms"] = covered_us(kernels) / 1e3 / steps
        generated = [e for e in kernels if e.name.startswith(_GENERATED)]
        found["generated_ms"] = covered_us(generated) / 1e3 / steps
    return found


def observed(
    device: str, run: Callable[[], Any], *, trace: Path | None = None
) -> list[Any]:
    """The events of a run, as torch's profiler saw them."""
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with (
        _without_stderr(),
        torch.profiler.profile(
            activities=activities,
            with_stack=trace is not None,
            acc_events=True,  # without, torch 2.11 warns that it keeps one cycle
        ) as seen,
    ):
        run()
        if device == "cuda":
            torch.cuda.synchronize()
    if trace is not None:
        seen.export_chrome_trace(str(trace))
    return list(seen.events())


def device_events(events: list[Any]) -> list[Any]:
    """Of what the profiler saw: kernels, copies and fills on the GPU."""
    return [
        e for e in events if "CUDA" in str(e.device_type) and not e.is_user_annotation
    ]


def is_kernel(event: Any) -> bool:
    return not event.name.startswith(("Memcpy", "Memset"))


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """The profiler's library announces itself there, whatever its log level."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def covered_us(events: list[Any]) -> float:
    """How long at least one of these was under way."""
    total, reached = 0.0, float("-inf")
    spans = ((e.time_range.start, e.time_range.end) for e in events)
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
