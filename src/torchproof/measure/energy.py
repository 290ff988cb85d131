"""Measures the energy of a step on NVIDIA GPUs, in a loop of its own.

Takes a pass over the calls, returns joules per call and mean watts. NVML reports the
whole board: also what idles on it, and what other processes run there.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from torchproof.measure.replies import Energy

_LIBRARY = "libnvidia-ml.so.1"
_WARM_S = 0.3  # until clocks and power are those of the step
_SECONDS = 1.0
_BATCH_S = 0.02  # between readings; reading each step would keep the GPU waiting
_LONGEST_S = 4.0  # to wait for the counter to change, if steps are short
# NVML's power is a mean over the last second on most boards.
_SAMPLED_WARM_S = 1.2
_SAMPLE_EVERY_S = 0.02


class NvmlError(Exception):
    """NVML refused; the message says why."""


class Boards:
    """The boards of these GPUs, summed up."""

    def __init__(self, uuids: Sequence[str], library: Any = None) -> None:
        self._library = _library() if library is None else library
        self._call("nvmlInit_v2")
        self._handles = [self._handle(uuid) for uuid in uuids]

    def __len__(self) -> int:
        return len(self._handles)

    def joules(self) -> float:
        """The energy since the driver was loaded; it changes every 20 to 100 ms."""
        name = "nvmlDeviceGetTotalEnergyConsumption"
        return self._sum(name, ctypes.c_ulonglong) / 1e3

    def watts(self) -> float:
        return self._sum("nvmlDeviceGetPowerUsage", ctypes.c_uint) / 1e3

    def limit_watts(self) -> float | None:
        try:
            return self._sum("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint) / 1e3
        except NvmlError:
            return None

    def _handle(self, uuid: str) -> Any:
        # A part of a board (MIG) has another kind of identifier and is not found.
        handle = ctypes.c_void_p()
        name = f"GPU-{uuid}".encode()
        self._call("nvmlDeviceGetHandleByUUID", name, ctypes.byref(handle))
        return handle

    def _sum(self, name: str, kind: type[Any]) -> int:
        total = 0
        for handle in self._handles:
            value = kind()
            self._call(name, handle, ctypes.byref(value))
            total += value.value
        return total

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._library, name)(*arguments):
            text = self._library.nvmlErrorString(code)
            raise NvmlError(f"NVML: {text.decode() if text else f'error {code}'}")


def _library() -> Any:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise NvmlError(f"{_LIBRARY} is not installed") from None
    library.nvmlErrorString.restype = ctypes.c_char_p
    return library


def used_boards() -> Boards:
    """The boards of the GPUs on which this process holds memory."""
    import torch

    numbers = [
        number
        for number in range(torch.cuda.device_count())
        if torch.cuda.memory_reserved(number)
    ]
    return Boards(
        [str(torch.cuda.get_device_properties(number).uuid) for number in numbers]
    )


def measure(
    run: Callable[[], Any],
    calls: int,
    boards: Callable[[], Boards] = used_boards,
    *,
    seconds: float = _SECONDS,
) -> Energy:
    """Runs passes of `calls` calls for a second or more; says why if it cannot."""
    try:
        found = boards()
        if not len(found):
            return Energy(why="the process holds no memory of a GPU")
        measured = _by_counter(run, found, seconds) or _by_samples(run, found, seconds)
    except NvmlError as error:
        return Energy(why=str(error))
    method, joules, passes, elapsed_s = measured
    return Energy(
        joules_per_step=joules / (passes * calls),
        watts=joules / elapsed_s,
        limit_watts=found.limit_watts(),
        seconds=elapsed_s,
        steps=passes * calls,
        boards=len(found),
        method=method,
    )


class PowerMeter:
    """The mean power between `start` and `stop`, by the energy counter of the boards.

    It reads the counter twice and runs nothing in between.
    """

    def __init__(self, boards: Callable[[], Boards] = used_boards) -> None:
        self._find_boards = boards
        self._boards: Boards | None = None
        self._begin_s = self._joules = 0.0
        self._why = "the meter was not started"

    def start(self) -> None:
        self._boards = None
        try:
            boards = self._find_boards()
            if not len(boards):
                self._why = "the process holds no memory of a GPU"
                return
            self._joules, self._begin_s = boards.joules(), time.monotonic()
            self._boards = boards
        except NvmlError as error:
            self._why = str(error)

    def stop(self) -> Energy:
        if self._boards is None:
            return Energy(why=self._why)
        try:
            joules = self._boards.joules() - self._joules
        except NvmlError as error:
            return Energy(why=str(error))
        elapsed_s = time.monotonic() - self._begin_s
        if not joules:
            return Energy(why="the energy counter did not change")
        return Energy(
            watts=joules / elapsed_s,
            limit_watts=self._boards.limit_watts(),
            seconds=elapsed_s,
            boards=len(self._boards),
            method="counter",
        )


_Measured = tuple[str, float, int, float]  # method, joules, passes, seconds


def _by_counter(
    run: Callable[[], Any], boards: Boards, seconds: float
) -> _Measured | None:
    """From one change of the energy counter to another; None if it has none."""
    try:
        joules = boards.joules()
    except NvmlError:
        return None
    _run_for(run, _WARM_S)
    changes: list[tuple[float, int, float]] = []  # time, passes, joules
    passes = 0
    begin = time.monotonic()
    while True:
        passes += _run_for(run, _BATCH_S)
        now, latest = time.monotonic(), boards.joules()
        if latest != joules:
            joules = latest
            changes.append((now, passes, joules))
            if now - changes[0][0] >= seconds:
                break
        elif now - (changes[-1][0] if changes else begin) > _LONGEST_S:
            return None
    (first_s, earlier, start), (last_s, later, end) = changes[0], changes[-1]
    return "counter", end - start, later - earlier, last_s - first_s


def _by_samples(run: Callable[[], Any], boards: Boards, seconds: float) -> _Measured:
    """The mean of the power that a thread reads beside the steps, times the time."""
    boards.watts()  # raises if it is not permitted
    _run_for(run, _SAMPLED_WARM_S)
    samples: list[float] = []
    done = threading.Event()

    def sample() -> None:
        while not done.wait(_SAMPLE_EVERY_S):
            samples.append(boards.watts())

    thread = threading.Thread(target=sample, daemon=True)
    begin = time.monotonic()
    thread.start()
    try:
        passes = _run_for(run, seconds)
    finally:
        done.set()
        thread.join()
    elapsed_s = time.monotonic() - begin
    if not samples:
        raise NvmlError("the power could not be read during the steps")
    return "samples", statistics.fmean(samples) * elapsed_s, passes, elapsed_s


def _run_for(run: Callable[[], Any], seconds: float) -> int:
    """Runs at least one pass, and passes for that long; returns how many."""
    end = time.monotonic() + seconds
    count = 0
    while not count or time.monotonic() < end:
        run()
        count += 1
    return count
