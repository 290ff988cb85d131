"""Writes where the threads of this process are, for `check --live`.

A thread looks at the stacks of the others, and writes those that changed: the phase of
compiling that a stack is in, and the innermost line of the user's code. It also writes
that the interpreter still runs: a library that holds the GIL stops this thread, too.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torchproof.process import frames_of_threads
from torchproof.records import plain_name, whose
from torchproof.torch_private import compile_phases

_PERIOD_S = 0.5
_MAIN = "main thread"

# A phase, and the file, line and name of the user's innermost function.
Position = tuple[str | None, str | None, int, str]


class StackSampler:
    """Samples while it is not paused; what is timed should not compete with it."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._may_run = threading.Event()
        self._started = False
        self._positions: dict[str, Position] = {}

    def start(self) -> None:
        # Not as a `threading.Thread`: a program that joins all threads would wait
        # for this one.
        self._started = True
        self._write("sampling", on=True)
        # Threads do not run while the interpreter frees what torch has.
        atexit.register(self._write, "exiting")
        self._may_run.set()
        _thread.start_new_thread(self._run, ())

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        if not self._started:
            yield
            return
        self._may_run.clear()
        self._write("sampling", on=False)
        try:
            yield
        finally:
            self._write("sampling", on=True)
            self._may_run.set()

    def _run(self) -> None:
        for count in itertools.count():
            self._may_run.wait()
            self.sample()
            if count % 2 == 0:
                self._write("alive")
            time.sleep(_PERIOD_S)

    def sample(self) -> None:
        """Looks at all threads once, and writes those that are elsewhere."""
        names = {each.ident: _track(each) for each in threading.enumerate()}
        for ident, frame in frames_of_threads().items():
            if ident == _thread.get_ident() or ident not in names:
                continue
            position, track = _position(frame), names[ident]
            if track != _MAIN and position[0] is None and track not in self._positions:
                continue  # a thread that has never compiled
            if self._positions.get(track) != position:
                self._positions[track] = position
                self._write("stack", track=track, **_words(position))


def _track(thread: threading.Thread) -> str:
    """As `timeline` names the tracks of threads."""
    if thread is threading.main_thread():
        return _MAIN
    return f"{thread.name} ({thread.native_id})"


def _position(innermost: FrameType) -> Position:
    frames: list[tuple[str, str]] = []
    place: tuple[str | None, int, str] = (None, 0, "")
    frame: FrameType | None = innermost
    while frame is not None:
        code = frame.f_code
        frames.append((code.co_filename, code.co_name))
        if place[0] is None and whose(code.co_filename) == "user":
            name = plain_name(code.co_qualname)
            place = code.co_filename, frame.f_lineno or 0, name
        frame = frame.f_back
    return compile_phases.phase_of_frames(frames[::-1]), *place


def _words(position: Position) -> dict[str, Any]:
    phase, file, line, function = position
    place = None if file is None else f"{file}:{line}"
    return {"phase": phase, "place": place, "function": function}
