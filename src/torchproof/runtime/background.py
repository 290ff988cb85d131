"""Compiles while calls run eager, and tells when compiled code is at hand for one."""

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

_KEPT = 4  # of a function: a model that goes on changing needs the latest only


@dataclass(frozen=True)
class Prepared:
    """What is compiled; the guards of `answer` tell for which calls, if not surely."""

    answer: Any
    job: Job

    def suits(self, conversion: frames.Conversion) -> bool:
        # Code that could not be compiled suits every call.
        is_code = frames.is_compiled_code(self.answer)
        return not is_code or frames.fits(self.answer, conversion)


# Given the frame, the state of its thread and the number of its call.
Prepare = Callable[
    [frames.Conversion, thread_state.ThreadState, int | None], Prepared | None
]


class Background:
    """One compilation of a function at a time, beside the calls of its model."""

    def __init__(self, prepare: Prepare, deliver: Callable[[], None]) -> None:
        self._prepare = prepare
        self._deliver = deliver
        self._lock = forks.lock()
        self._running: dict[CodeType, interruptible_thread.Attempt] = {}
        self._done: dict[CodeType, deque[Prepared]] = {}
        forks.register(self)

    def after_fork(self) -> None:
        """What the parent's threads compile is the parent's."""
        self._running.clear()

    @property
    def pending(self) -> tuple[CodeType, ...]:
        return tuple(self._running)

    def prepared(self, conversion: frames.Conversion) -> Prepared | None:
        """What an earlier call had compiled and suits this one."""
        with self._lock:
            done = self._done.get(conversion.code, ())
            return next((item for item in done if item.suits(conversion)), None)

    def forget(self, code: CodeType, item: Prepared) -> None:
        with self._lock:
            if item in self._done.get(code, ()):
                self._done[code].remove(item)

    def begin(
        self,
        conversion: frames.Conversion,
        state: thread_state.ThreadState,
        call: int | None,
    ) -> None:
        """Compiles for this call, unless the function is being compiled."""
        code = conversion.code
        with self._lock:
            if code in self._running:
                return
            work = functools.partial(
                self._work, conversion.with_frame_copy(), state, call
            )
            self._running[code] = interruptible_thread.Attempt(
                work, "torchproof-background"
            )

    def _work(
        self,
        conversion: frames.Conversion,
        state: thread_state.ThreadState,
        call: int | None,
    ) -> None:
        code, item = conversion.code, None
        try:
            with interruptible_thread.short_turns():
                item = self._prepare(conversion, state, call)
        finally:
            with self._lock:
                if item is not None:
                    self._done.setdefault(code, deque(maxlen=_KEPT)).append(item)
                del self._running[code]
            self._deliver()
