"""The watcher for host syncs: lines at which a compiled program waits for the GPU.

Listens to torch's sync debug mode and to calls of `torch.cuda.synchronize`. Writes
`host_syncs`: for each line, whether it is inside a compiled call, and how many compiled
calls it delayed.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import torch

from torchproof import torch_private
from torchproof.observe.audit.stacks import site
from torchproof.records import SyncEvent, inside_region, place_of, whose
from torchproof.torch_private import cudagraph_recordings

_FLUSH_S = 0.5
_SYNC_WARNING = "called a synchronizing CUDA operation"
# On the stack while torch compiles or autotunes: such a sync is not part of a step.
_COMPILING = (
    "torch/_dynamo/convert_frame.py",
    "torch/_inductor/graph.py",
    "torch/_inductor/runtime/triton_heuristics.py",
)
Place = tuple[str, int, bool]


class Syncs:
    """Counts the syncs inside calls of compiled functions, and between them."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._hooks = contextlib.ExitStack()
        self._local = threading.local()
        self._calls = 0  # outermost calls of compiled functions
        self._places: dict[Place, SyncEvent] = {}
        self._last: dict[Place, int] = {}  # the number of the last call that waited
        self._listening = False
        self._flushed = 0.0

    def __enter__(self) -> Syncs:
        if torch.cuda.is_available():
            enter = self._hooks.enter_context
            enter(torch_private.compiled_contexts(lambda context: self._entered))
            enter(_explicit(self.note))
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()
        self._flush()

    def before_call(self, index: int) -> None:
        pass

    def after_call(self, index: int) -> None:
        if time.monotonic() - self._flushed > _FLUSH_S:
            self._flush()

    def _flush(self) -> None:
        """Writes a snapshot of all places; the last one in the stream counts."""
        self._flushed = time.monotonic()
        if self._places:
            every = [replace(e, of=self._calls) for e in self._places.values()]
            self._write("host_syncs", places=[event.to_json() for event in every])

    def _entered(self) -> Callable[[], None]:
        depth = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        self._calls += depth == 0
        started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if started and not self._listening:
            # Not earlier: setting the debug mode would initialise CUDA.
            self._listening = True
            self._hooks.enter_context(_sync_warnings(self.note))

        def leave() -> None:
            self._local.depth = depth

        return leave

    def note(self, explicit: bool) -> None:
        """Notes that the host waits for the device at the current line."""
        if not self._calls or cudagraph_recordings.is_recording() or _by_torchproof():
            return
        inside = getattr(self._local, "depth", 0) > 0
        frames = inside_region(site()) if inside else site()
        if any(frame.file.endswith(_COMPILING) for frame in frames):
            return
        place = place_of(frames).frame
        if place is None:
            return
        key = place.file, place.line, inside
        new = SyncEvent(
            frames=frames, explicit=explicit, inside=inside, count=0, calls=0, of=0
        )
        known = self._places.get(key, new)
        calls = known.calls + (self._last.get(key) != self._calls)
        self._places[key] = replace(known, count=known.count + 1, calls=calls)
        self._last[key] = self._calls


def _by_torchproof() -> bool:
    """Whether torchproof itself, for example a watcher, waits for the device."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and whose(file) not in {"torch", "standard", "generated"}:
            return whose(file) == "torchproof"
        frame = frame.f_back
    return True


@contextlib.contextmanager
def _sync_warnings(note: Callable[[bool], None]) -> Iterator[None]:
    """Calls `note(False)` at each torch operation that waits for the device."""
    original = warnings.showwarning

    def show(message: Warning | str, *rest: Any, **named: Any) -> None:
        if _SYNC_WARNING in str(message):
            note(False)
        else:
            original(message, *rest, **named)

    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode warns that it is a prototype
        torch.cuda.set_sync_debug_mode("warn")
    warnings.filterwarnings("always", message=_SYNC_WARNING)
    try:
        with torch_private.patched(warnings, "showwarning", show):
            yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@contextlib.contextmanager
def _explicit(note: Callable[[bool], None]) -> Iterator[None]:
    """Calls `note(True)` at each `torch.cuda.synchronize()`."""
    original = torch.cuda.synchronize

    @functools.wraps(original)
    def synchronize(*args: Any, **kwargs: Any) -> None:
        note(True)
        original(*args, **kwargs)

    with torch_private.patched(torch.cuda, "synchronize", synchronize):
        yield
