"""One CUDA graph: takes a step without arguments, returns the recorded outputs.

The step runs on a side stream, first without capture (`rehearse`), then under capture
(`record`). `replay` launches the graph on the caller's stream, on the same memory.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchproof.process import forks
from torchproof.runtime.cudagraph.graph_status import Stop, Stopped
from torchproof.runtime.cudagraph.step_gradients import AttachedGradients
from torchproof.torch_private import step_capture


def home_of(tensors: Iterable[Tensor]) -> torch.device:
    """The CUDA device of a step; raises `Stopped` if there is none or several."""
    if not torch.cuda.is_available():
        raise Stopped(Stop("capture", "torch finds no CUDA device"))
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise Stopped(Stop("input", f"the step uses several devices: {names}"))
    if not devices:
        raise Stopped(Stop("input", "neither arguments nor weights are on a GPU"))
    return devices.pop()


WAIT = "called a synchronizing CUDA operation"
BOUND = "AccumulateGrad node's stream does not match"
RECORDING = forks.rlock()  # a process makes one recording at a time


class Pool:
    """The memory pool that recordings share, and the lock that serialises them.

    Recordings of one pool overwrite each other's intermediate results.
    """

    def __init__(self) -> None:
        self.lock = forks.rlock()
        self.handle: Any = None
        self.captures: weakref.WeakSet[Capture] = weakref.WeakSet()
        self.gradients = AttachedGradients()
        self._last: torch.cuda.Stream | None = None
        self._last_handle: tuple[int, int] | None = None  # reading it is faster
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._callers: set[torch.cuda.Stream] = set()

    def open(self) -> Any:
        if self.handle is None or not self.captures:
            # A pool without recordings cannot be used again.
            self.handle = torch.cuda.graph_pool_handle()
        return self.handle

    def abandon(self) -> None:
        """The next recording gets a new pool and a new stream."""
        self.handle = None
        self._streams.clear()

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """One stream for all recordings, because streams do not share memory."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    @contextlib.contextmanager
    def aside(self, device: torch.device) -> Iterator[None]:
        """Runs the block on the side stream, ordered with the caller's stream.

        And with earlier callers' streams: they may still read what they have freed.
        """
        with torch.cuda.device(device):
            caller = torch.cuda.current_stream()
            side = self.stream(device)
            self._callers.add(caller)
            for each in self._callers:
                if each.device == device:
                    side.wait_stream(each)
            try:
                with torch.cuda.stream(side):
                    yield
            finally:
                caller.wait_stream(side)

    def join(self) -> None:
        """Makes the caller's stream wait for the stream that used the pool last."""
        if (handle := step_capture.current_stream()) == self._last_handle:
            return
        stream = torch.cuda.current_stream()
        if self._last is not None:
            stream.wait_stream(self._last)
        self._last, self._last_handle = stream, handle

    def bytes(self) -> int | None:
        """The memory of the pool in bytes; None before the first recording."""
        if self.handle is None:
            return None
        pool_id = tuple(self.handle)
        return sum(
            segment["total_size"]
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment.get("segment_pool_id", ())) == pool_id
        )


class Capture:
    """The CUDA graph of one step."""

    def __init__(self, device: torch.device, pool: Pool) -> None:
        self.pool = pool
        self.device = device
        self.graph = torch.cuda.CUDAGraph()

    def aside(self) -> contextlib.AbstractContextManager[None]:
        return self.pool.aside(self.device)

    def release(self) -> None:
        """Gives cached memory back to the device.

        Streams do not share cached memory, so that of one would add to that of others.
        """
        step_capture.clear_workspaces()
        torch.cuda.empty_cache()

    def rehearse(self, run: Callable[[], Any]) -> Any:
        """Runs the step once without capture, on the code path of the capture.

        Some code takes another path while a stream is capturing; that path must be
        compiled and its memory allocated before the capture.
        """
        with self.aside(), said_to_be_capturing():
            return run()

    @contextlib.contextmanager
    def listening(self, note: Callable[[str], None]) -> Iterator[None]:
        """Calls `note(message)` for torch warnings that would be errors in a capture.

        These are: this thread synchronises with the device, or gradients are bound to
        another stream.
        """
        mode = torch.cuda.get_sync_debug_mode()
        thread = threading.get_ident()

        def show(message: Any, category: Any, *rest: Any, **more: Any) -> None:
            if not any(text in str(message) for text in (WAIT, BOUND)):
                original(message, category, *rest, **more)
            elif threading.get_ident() == thread:
                note(str(message))

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode")
            warnings.filterwarnings("always", WAIT)
            warnings.filterwarnings("always", f"The {BOUND}")
            original = warnings.showwarning
            warnings.showwarning = show
            try:
                torch.cuda.set_sync_debug_mode("warn")
                yield
            finally:
                torch.cuda.set_sync_debug_mode(mode)

    def record(self, run: Callable[[], Any]) -> Any:
        """Captures one run without executing it; returns the graph's output memory."""
        with torch.cuda.device(self.device):
            caller = torch.cuda.current_stream()
            try:
                with (
                    step_capture.own_workspaces(),
                    self._capturing(self.graph, self.pool.open()),
                ):
                    output = run()
                self.pool.captures.add(self)
                return output
            except BaseException:
                # Torch does not leave the stream of a capture that cannot be ended.
                torch.cuda.set_stream(caller)
                self._recover()
                raise

    @contextlib.contextmanager
    def _capturing(
        self, graph: torch.cuda.CUDAGraph, pool: Any = None
    ) -> Iterator[None]:
        error_mode = "thread_local"  # other threads may synchronise meanwhile
        stream = self.pool.stream(self.device)
        with warnings.catch_warnings():
            # A step may launch no kernel at all.
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            with torch.cuda.graph(
                graph, pool=pool, stream=stream, capture_error_mode=error_mode
            ):
                yield

    def _recover(self) -> None:
        """Resets torch after a failed capture, which it believes is still running.

        This ends the allocator's capture and abandons the pool. The random generators
        need another capture that succeeds, so an empty one follows.
        """
        step_capture.end_allocation(self.device, self.pool.handle)
        self.pool.abandon()
        step_capture.capture_nothing(self.pool.stream(self.device))

    def replay(self) -> None:
        self.graph.replay()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def seconds_of(self, replays: int) -> float:
        """The mean seconds that the device needs for a replay."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(replays):
            self.graph.replay()
        end.record()
        end.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1e3 / replays

    def drop(self) -> None:
        self.pool.captures.discard(self)
        self.graph.reset()


@contextlib.contextmanager
def said_to_be_capturing() -> Iterator[None]:
    """Makes torch report a running capture in this thread."""
    original = torch.cuda.is_current_stream_capturing
    thread = threading.get_ident()

    def is_capturing() -> bool:
        return threading.get_ident() == thread or original()

    torch.cuda.is_current_stream_capturing = is_capturing
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = original
