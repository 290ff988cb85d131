"""Compiles while calls run eager, and hands code over once it fits a call."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from types import CodeType
from typing import Any

from torchproof.runtime import attempts
from torchproof.torch_private import frames

Compile = Callable[[frames.Conversion, frames.ThreadState, float], Any]


class Background:
    """One compilation of a function at a time, beside the calls of its model."""

    def __init__(self, compile_it: Compile, deadline_s: float) -> None:
        self._compile_it = compile_it
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._running: dict[CodeType, attempts.Attempt] = {}
        self._done: dict[CodeType, list[Any]] = {}

    @property
    def pending(self) -> tuple[CodeType, ...]:
        return tuple(self._running)

    def convert(self, conversion: frames.Conversion, state: frames.ThreadState) -> Any:
        """What an earlier call had compiled and fits this one; None if nothing does.

        Then it is compiled for this call, unless the function is being compiled.
        """
        code = conversion.code
        with self._lock:
            done = self._done.setdefault(code, [])
            for answer in done:
                # Code that could not be compiled fits every call.
                if not frames.is_compiled_code(answer) or frames.fits(
                    answer, conversion
                ):
                    done.remove(answer)
                    return answer
            if code not in self._running:
                work = functools.partial(self._compile, conversion.kept(), state)
                self._running[code] = attempts.Attempt(work, "torchproof-background")
        return None

    def _compile(
        self, conversion: frames.Conversion, state: frames.ThreadState
    ) -> None:
        code, answer = conversion.code, None
        try:
            with attempts.short_turns():
                until = time.monotonic() + self._deadline_s
                answer = self._compile_it(conversion, state, until)
        finally:
            with self._lock:
                if answer is not None:
                    self._done[code].append(answer)
                del self._running[code]
