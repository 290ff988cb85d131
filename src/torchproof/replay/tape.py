"""One CUDA graph: in goes a step without arguments, out comes what it returned.

The step runs on a side stream, first plainly (`rehearse`), then under capture
(`record`); `replay` runs what was recorded on the caller's stream, on the same memory.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchproof.replay.facts import Stop, Stopped


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


_WAIT = "called a synchronizing CUDA operation"
_recording = threading.RLock()  # one capture at a time in a process


class Pool:
    """Memory that recordings share, and the order in which they use it.

    Recordings of one pool overwrite each other's intermediate results: they take turns.
    """

    def __init__(self) -> None:
        self.turn = threading.RLock()
        self.handle: Any = None
        self._last: torch.cuda.Stream | None = None

    def open(self) -> Any:
        if self.handle is None:
            self.handle = torch.cuda.graph_pool_handle()
        return self.handle

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


class Tape:
    """A recording of one step."""

    def __init__(self, device: torch.device, pool: Pool) -> None:
        self.pool = pool
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.graph = torch.cuda.CUDAGraph()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Work on the tape's own stream, in order with the caller's."""
        with torch.cuda.device(self.device):
            caller = torch.cuda.current_stream()
            self.stream.wait_stream(caller)
            try:
                with torch.cuda.stream(self.stream):
                    yield
            finally:
                caller.wait_stream(self.stream)

    def rehearse(self, run: Callable[[], Any]) -> Any:
        """One plain run on the path that the capture will take.

        Code that asks whether a capture is under way does other things then, and what
        it does must have been compiled and allocated before.
        """
        with self.aside(), _said_to_be_capturing():
            return run()

    @contextlib.contextmanager
    def waits(self, note: Callable[[], None]) -> Iterator[None]:
        """`note()` whenever this thread makes the host wait for the device."""
        mode = torch.cuda.get_sync_debug_mode()

        def told(message: Any, category: Any, *rest: Any, **more: Any) -> None:
            if _WAIT in str(message):
                note()
            else:
                shown(message, category, *rest, **more)

        with warnings.catch_warnings():
            warnings.filterwarnings("always", _WAIT)
            shown, warnings.showwarning = warnings.showwarning, told
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode(mode)

    def record(self, run: Callable[[], Any]) -> Any:
        """Captures one run, which does not take place; what it returned is memory."""
        with _recording, torch.cuda.device(self.device), warnings.catch_warnings():
            # A step that launches nothing on the device is a graph all the same.
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            with torch.cuda.graph(
                self.graph,
                pool=self.pool.open(),
                stream=self.stream,
                capture_error_mode="thread_local",
            ):
                return run()

    def replay(self) -> None:
        self.graph.replay()

    def drop(self) -> None:
        self.graph.reset()


@contextlib.contextmanager
def _said_to_be_capturing() -> Iterator[None]:
    asked, here = torch.cuda.is_current_stream_capturing, threading.get_ident()

    def answer() -> bool:
        return threading.get_ident() == here or asked()

    torch.cuda.is_current_stream_capturing = answer
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asked
