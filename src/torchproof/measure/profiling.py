"""Measures time, memory, guard lookups and kernels in the process of a target."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from torchproof.measure.replies import Kernels, Lookups
from torchproof.records import stats

LOOKUP = "TorchDynamo Cache Lookup"
_LATE_MS = 0.1  # ten times what a synchronisation of idle streams takes
_PROFILED_PASSES = (3, 30)  # fewest, most
_PROFILED_S = 0.3
_MOST_SAMPLES = 1000  # per round
_GENERATED = "triton_"  # prefix of the kernels that Inductor generates


class Clock:
    """Times one call, with synchronised events on CUDA, else with a monotonic clock."""

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cuda":
            import torch

            self._begin = torch.cuda.Event(enable_timing=True)
            self._end = torch.cuda.Event(enable_timing=True)

    def milliseconds(self, step: Callable[[], Any]) -> float:
        """Returns the time of a step until its last kernel ends, on any stream."""
        if self.device != "cuda":
            begin = time.perf_counter_ns()
            step()
            return (time.perf_counter_ns() - begin) / 1e6
        self._begin.record()
        step()
        self._end.record()
        self._end.synchronize()
        end_ns = time.perf_counter_ns()
        self.synchronise()  # an event covers its own stream only
        late_ms = (time.perf_counter_ns() - end_ns) / 1e6
        elapsed = float(self._begin.elapsed_time(self._end))
        return elapsed + late_ms if late_ms > _LATE_MS else elapsed

    def seconds(self, step: Callable[[], Any]) -> tuple[float, Any]:
        """The wall time of a step and its compilation, device included; its result."""
        self.synchronise()
        begin = time.perf_counter()
        result = step()
        self.synchronise()
        return time.perf_counter() - begin, result

    def synchronise(self) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()


def context_switches() -> int:
    """Returns the count of involuntary context switches of this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def timed(
    run: Callable[[], float],
    count: int,
    seconds: float,
    goes_on: Callable[[bool], bool] = bool,
) -> tuple[list[float], list[bool]]:
    """Runs passes of `count` calls for a while.

    Returns the times per call, and whether each pass was interrupted. `goes_on` decides
    with other ranks: it gets whether this one wants another pass.
    """
    times: list[float] = []
    interrupted: list[bool] = []
    begin, before = time.monotonic(), context_switches()
    while len(times) < _MOST_SAMPLES:
        times.append(run() / count)
        after = context_switches()
        interrupted.append(after > before)
        before, elapsed = after, time.monotonic() - begin
        is_over = elapsed >= seconds and stats.round_is_over(
            elapsed * 1e3, interrupted.count(False), seconds * 1e3
        )
        if not goes_on(not is_over):
            break
    return times, interrupted


def initialise_device(device: str) -> None:
    """Loads the device context and libraries, so that no strategy pays for them."""
    import torch

    if device == "cuda":
        for dtype in (torch.float32, torch.bfloat16):
            one = torch.ones(8, 8, device=device, dtype=dtype)
            (one @ one).sum().item()
    torch.ones(8, 8) @ torch.ones(8, 8)


def peak_memory(device: str, run: Callable[[], Any]) -> dict[str, int | None]:
    """Returns the peak memory of a pass in bytes, without earlier peaks."""
    peaks: dict[str, int | None] = dict.fromkeys(("cuda_allocated", "cuda_graph_pools"))
    if device == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
    resets = _reset_peak_rss()
    run()
    peaks["host_rss"] = _status("VmHWM" if resets else "VmRSS")
    if device == "cuda":
        torch.cuda.synchronize()
        peaks["cuda_allocated"] = torch.cuda.max_memory_allocated()
        peaks["cuda_graph_pools"] = _graph_pools()
    return peaks


def peak_bytes(device: str) -> int | None:
    """Returns the peak memory of the process so far: of the device, else of the host.

    On CUDA it includes what CUDA graphs reserve.
    """
    if device != "cuda":
        return _status("VmHWM")
    import torch

    return torch.cuda.max_memory_reserved()


def _graph_pools() -> int:
    """Returns the bytes that CUDA graphs reserve; torch does not count them."""
    import torch

    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
    )


def memory_in_use(device: str) -> dict[str, int]:
    """Returns the bytes in use, to tell how many more processes fit in memory."""
    vram = 0
    if device == "cuda":
        import torch

        vram = torch.cuda.memory_reserved()
    return {"host": _status("VmRSS") or 0, "cuda": vram}


def _reset_peak_rss() -> bool:
    """Resets the peak RSS of the process: Linux does so when 5 is written there."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(name: str) -> int | None:
    status = Path("/proc/self/status").read_text()
    match = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def profile(
    device: str,
    run: Callable[[], Any],
    *,
    calls: int,
    trace: Path | None = None,
    largest: Callable[[float], float] = float,
) -> tuple[Lookups | None, Kernels | None]:
    """Profiles guard lookups and kernels per call; one run makes `calls` calls.

    With `trace`, the Chrome trace is saved there. `largest` is that of all ranks, which
    have to run equally often.
    """
    few, many = _PROFILED_PASSES
    begin = time.monotonic()
    run()
    fit = int(_PROFILED_S / (time.monotonic() - begin))
    count = int(largest(few if trace else min(max(few, fit), many)))
    events = profiler_events(device, lambda: [run() for _ in range(count)], trace=trace)
    steps = count * calls
    times = [e.time_range.elapsed_us() for e in events if e.name == LOOKUP]
    lookups = kernels = None
    if len(times) > 1:
        # Quartiles over lookups, times lookups per step: robust to a slow one.
        quartiles = statistics.quantiles(times, n=4)
        first, middle, third = (each * len(times) / steps for each in quartiles)
        lookups = Lookups(middle, (first, third))
    if device == "cuda":
        every = [e for e in device_events(events) if is_kernel(e)]
        generated = [e for e in every if e.name.startswith(_GENERATED)]
        kernels = Kernels(
            len(every) / steps,
            kernel_ms=covered_us(every) / 1e3 / steps,
            generated_ms=covered_us(generated) / 1e3 / steps,
        )
    return lookups, kernels


def profiler_events(
    device: str, run: Callable[[], Any], *, trace: Path | None = None
) -> list[Any]:
    """Runs under torch's profiler and returns its events."""
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with (
        _without_stderr(),
        torch.profiler.profile(
            activities=activities,
            with_stack=trace is not None,
            acc_events=True,  # torch 2.11 warns otherwise that it keeps one cycle
        ) as profiler,
    ):
        run()
        if device == "cuda":
            torch.cuda.synchronize()
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    return list(profiler.events())


def device_events(events: list[Any]) -> list[Any]:
    """Returns the kernels, copies and fills on the GPU."""
    return [
        e for e in events if "CUDA" in str(e.device_type) and not e.is_user_annotation
    ]


def is_kernel(event: Any) -> bool:
    return not event.name.startswith(("Memcpy", "Memset"))


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Silences stderr: the profiler's library prints there at every log level."""
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def covered_us(events: list[Any]) -> float:
    """Returns the time during which at least one of the events was running."""
    total, reached = 0.0, float("-inf")
    spans = ((e.time_range.start, e.time_range.end) for e in events)
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def process_age_s() -> float:
    """Seconds since this process was started, imports included."""
    created: float = psutil.Process().create_time()
    return time.time() - created
