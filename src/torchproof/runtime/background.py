"""Compiles in a background thread while calls run eager (`wait=False`).

`Background.begin` starts a compilation for a frame; `Background.prepared` returns the
finished compilation that fits a later call.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torchproof.process import forks
from torchproof.runtime import interruptible_thread
from torchproof.runtime.compile_job import Job
from torchproof.torch_private import frames, thread_state

_KEPT = 4  # per function: a model that keeps changing needs only the latest


@dataclass(frozen=True)
class Prepared:
    """A finished compilation; the guards of `answer` decide which calls it may fit."""

    answer: Any
    job: Job

    def fits(self, conversion: frames.Conversion) -> bool:
        # Without compiled code there are no guards, and it fits every call.
        is_code = frames.is_compiled_code(self.answer)
        return not is_code or frames.fits(self.answer, conversion)


# Takes the frame, the state of its thread and the number of its call.
Prepare = Callable[
    [frames.Conversion, thread_state.ThreadState, int | None], Prepared | None
]


class Background:
    """Runs at most one background compilation per function."""

    def __init__(self, prepare: Prepare, deliver: Callable[[], None]) -> None:
        self._prepare = prepare
        self._deliver = deliver
        self._lock = forks.lock()
        self._running: dict[CodeType, interruptible_thread.InterruptibleThread] = {}
        self._prepared: dict[CodeType, deque[Prepared]] = {}
        forks.register(self)

    def after_fork(self) -> None:
        """The compile threads exist in the parent only."""
        self._running.clear()

    @property
    def pending(self) -> tuple[CodeType, ...]:
        return tuple(self._running)

    @property
    def unused(self) -> tuple[CodeType, ...]:
        """The functions with a finished compilation that no call has used yet."""
        with self._lock:
            return tuple(code for code, items in self._prepared.items() if items)

    def prepared(self, conversion: frames.Conversion) -> Prepared | None:
        """A finished compilation that fits this call, or None."""
        with self._lock:
            items = self._prepared.get(conversion.code, ())
            return next((item for item in items if item.fits(conversion)), None)

    def forget(self, code: CodeType, item: Prepared) -> None:
        with self._lock:
            if item in self._prepared.get(code, ()):
                self._prepared[code].remove(item)

    def begin(
        self,
        conversion: frames.Conversion,
        state: thread_state.ThreadState,
        call: int | None,
    ) -> None:
        """Starts to compile for this call, unless the function is being compiled."""
        code = conversion.code
        with self._lock:
            if code in self._running:
                return
            work = functools.partial(
                self._work, conversion.with_frame_copy(), state, call
            )
            self._running[code] = interruptible_thread.InterruptibleThread(
                work, "torchproof-background"
            )

    def _work(
        self,
        conversion: frames.Conversion,
        state: thread_state.ThreadState,
        call: int | None,
    ) -> None:
        code = conversion.code
        item = None
        try:
            with interruptible_thread.short_switch_interval():
                item = self._prepare(conversion, state, call)
        finally:
            with self._lock:
                if item is not None:
                    self._prepared.setdefault(code, deque(maxlen=_KEPT)).append(item)
                del self._running[code]
            self._deliver()
