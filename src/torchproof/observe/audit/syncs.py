"""Where a program with compiled calls waits for the GPU: a watcher of the audit.

Comes in: the warnings of torch's own debug mode for synchronising operations, and calls
of `torch.cuda.synchronize`. Goes out: `host_syncs`, each place with whether it lies
inside a compiled call, and how many such calls waited there, or were waited after.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from torchproof import torch_private
from torchproof.observe.audit.sites import site
from torchproof.records import inside_region, place_of, whose
from torchproof.targets import plain
from torchproof.torch_private import cudagraph_recordings

_FLUSH_S = 0.5
_SAID = "called a synchronizing CUDA operation"
# On the stack while torch compiles or tunes: those waits are no part of a step.
_COMPILING = (
    "torch/_dynamo/convert_frame.py",
    "torch/_inductor/graph.py",
    "torch/_inductor/runtime/triton_heuristics.py",
)
Place = tuple[str, int, bool]


class Syncs:
    """Counts the waits inside calls of compiled functions, and between them."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._hooks = contextlib.ExitStack()
        self._local = threading.local()
        self._calls = 0  # of compiled functions, those inside others apart
        self._places: dict[Place, dict[str, Any]] = {}
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
        """A snapshot of all places; the last one in the stream holds."""
        self._flushed = time.monotonic()
        if self._places:
            places = list(self._places.values())
            self._write("host_syncs", places=places, calls=self._calls)

    def _entered(self) -> Callable[[], None]:
        depth = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        self._calls += depth == 0
        started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if started and not self._listening:
            # Not earlier: it would begin the program's use of the GPU.
            self._listening = True
            self._hooks.enter_context(_heard(self.note))

        def leave() -> None:
            self._local.depth = depth

        return leave

    def note(self, explicit: bool) -> None:
        """The host waits, here and now."""
        if not self._calls or cudagraph_recordings.is_recording() or _by_torchproof():
            return
        inside = getattr(self._local, "depth", 0) > 0
        frames = inside_region(site()) if inside else site()
        if any(frame.file.endswith(_COMPILING) for frame in frames):
            return
        place = place_of(frames).frame
        if place is None:
            return
        fresh = {"site": plain(frames), "explicit": explicit, "inside": inside}
        key = place.file, place.line, inside
        counts = self._places.setdefault(key, {**fresh, "count": 0, "calls": 0})
        counts["count"] += 1
        if counts.get("last") != self._calls:
            counts["calls"] += 1
            counts["last"] = self._calls


def _by_torchproof() -> bool:
    """Whether torchproof waits, before or after what it runs, or a watcher does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and whose(file) not in {"torch", "standard", "generated"}:
            return whose(file) == "torchproof"
        frame = frame.f_back
    return True


@contextlib.contextmanager
def _heard(note: Callable[[bool], None]) -> Iterator[None]:
    """`note(False)` at each operation of torch's that waits for the device."""
    original = warnings.showwarning

    def show(message: Warning | str, *rest: Any, **named: Any) -> None:
        if _SAID in str(message):
            note(False)
        else:
            original(message, *rest, **named)

    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says of itself that it is a prototype
        torch.cuda.set_sync_debug_mode("warn")
    warnings.filterwarnings("always", message=_SAID)
    try:
        with torch_private.patched(warnings, "showwarning", show):
            yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@contextlib.contextmanager
def _explicit(note: Callable[[bool], None]) -> Iterator[None]:
    """`note(True)` at each `torch.cuda.synchronize()`."""
    original = torch.cuda.synchronize

    @functools.wraps(original)
    def synchronize(*args: Any, **kwargs: Any) -> None:
        note(True)
        original(*args, **kwargs)

    with torch_private.patched(torch.cuda, "synchronize", synchronize):
        yield
