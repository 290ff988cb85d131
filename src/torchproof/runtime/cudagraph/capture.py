"""One CUDA graph: in goes a step without arguments, out comes what it returned.

The step runs on a side stream, first plainly (`rehearse`), then under capture
(`record`); `replay` runs what was recorded on the caller's stream, on the same memory.
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
from torchproof.torch_private import step_capture


def home_of(tensors: Iterable[Tensor]) -> torch.device:
    """The device that a step computes on: one, with CUDA graphs."""
    if not torch.cuda.is_available():
        raise Stopped(Stop("capture", "torch sees no CUDA device here"))
    homes = {tensor.device for tensor in tensors if tensor.is_cuda}
    if len(homes) > 1:
        names = ", ".join(sorted(map(str, homes)))
        raise Stopped(Stop("input", f"the step computes on several devices: {names}"))
    if not homes:
        raise Stopped(Stop("input", "neither arguments nor weights lie on a GPU"))
    return homes.pop()


WAIT = "called a synchronizing CUDA operation"
BOUND = "AccumulateGrad node's stream does not match"
RECORDING = forks.rlock()  # one at a time in a process


class Pool:
    """Memory that recordings share, and the order in which they use it.

    Recordings of one pool overwrite each other's intermediate results: they take turns.
    """

    def __init__(self) -> None:
        self.turn = forks.rlock()
        self.handle: Any = None
        self.captures: weakref.WeakSet[Capture] = weakref.WeakSet()  # that use it
        self._last: torch.cuda.Stream | None = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def open(self) -> Any:
        if self.handle is None or not self.captures:
            # One whose recordings are all gone cannot be used again.
            self.handle = torch.cuda.graph_pool_handle()
        return self.handle

    def abandon(self) -> None:
        """The next recording begins with memory and a stream of its own."""
        self.handle = None
        self._streams.clear()

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """One for all recordings: memory is not shared between streams."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def join(self) -> None:
        """The caller's stream comes after the one that used the pool before."""
        stream = torch.cuda.current_stream()
        if self._last is not None and self._last != stream:
            stream.wait_stream(self._last)
        self._last = stream

    def bytes(self) -> int | None:
        """What the allocator holds for the pool; None before the first recording."""
        if self.handle is None:
            return None
        wanted = tuple(self.handle)
        return sum(
            segment["total_size"]
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment.get("segment_pool_id", ())) == wanted
        )


class Capture:
    """A recording of one step."""

    def __init__(self, device: torch.device, pool: Pool) -> None:
        self.pool = pool
        self.device = device
        self.graph = torch.cuda.CUDAGraph()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Work on the capture's own stream, in order with the caller's."""
        with torch.cuda.device(self.device):
            caller, own = torch.cuda.current_stream(), self.pool.stream(self.device)
            own.wait_stream(caller)
            try:
                with torch.cuda.stream(own):
                    yield
            finally:
                caller.wait_stream(own)

    def rehearse(self, run: Callable[[], Any]) -> Any:
        """One plain run on the path that the capture will take.

        Code that asks whether a capture is under way does other things then, and what
        it does must have been compiled and allocated before.
        """
        with self.aside(), said_to_be_capturing():
            return run()

    @contextlib.contextmanager
    def listening(self, note: Callable[[str], None]) -> Iterator[None]:
        """`note(message)` of what would stop a capture and torch only warns of.

        That is: this thread makes the host wait for the device, or gradients are bound
        to another stream.
        """
        mode, here = torch.cuda.get_sync_debug_mode(), threading.get_ident()

        def show(message: Any, category: Any, *rest: Any, **more: Any) -> None:
            if not any(known in str(message) for known in (WAIT, BOUND)):
                shown(message, category, *rest, **more)
            elif threading.get_ident() == here:
                note(str(message))

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode")
            warnings.filterwarnings("always", WAIT)
            warnings.filterwarnings("always", f"The {BOUND}")
            shown, warnings.showwarning = warnings.showwarning, show
            try:
                torch.cuda.set_sync_debug_mode("warn")
                yield
            finally:
                torch.cuda.set_sync_debug_mode(mode)

    def record(self, run: Callable[[], Any]) -> Any:
        """Captures one run, which does not take place; what it returned is memory."""
        with torch.cuda.device(self.device):
            try:
                with (
                    step_capture.own_workspaces(),
                    self._capturing(self.graph, self.pool.open()),
                ):
                    output = run()
                self.pool.captures.add(self)
                return output
            except BaseException:
                self._recover()
                raise

    @contextlib.contextmanager
    def _capturing(
        self, graph: torch.cuda.CUDAGraph, pool: Any = None
    ) -> Iterator[None]:
        how = "thread_local"  # what other threads do meanwhile is their business
        stream = self.pool.stream(self.device)
        with warnings.catch_warnings():
            # A step that launches nothing on the device is a graph all the same.
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            with torch.cuda.graph(
                graph, pool=pool, stream=stream, capture_error_mode=how
            ):
                yield

    def _recover(self) -> None:
        """After a capture that failed torch believes that it is still under way.

        Its allocator is told, and the pool is not used for more; its random generators
        learn it from a capture that ends.
        """
        step_capture.end_allocation(self.device, self.pool.handle)
        self.pool.abandon()
        with self._capturing(torch.cuda.CUDAGraph()):
            pass

    def replay(self) -> None:
        self.graph.replay()

    def drop(self) -> None:
        self.pool.captures.discard(self)
        self.graph.reset()


@contextlib.contextmanager
def said_to_be_capturing() -> Iterator[None]:
    asked, here = torch.cuda.is_current_stream_capturing, threading.get_ident()

    def answer() -> bool:
        return threading.get_ident() == here or asked()

    torch.cuda.is_current_stream_capturing = answer
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asked
