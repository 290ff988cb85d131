"""Loads the compiler and traces a step in parts, while calls are answered.

`PartialTrace` is asked for each frame without code in a run of the step. Dynamo
converts a frame without running it, so a thread converts the frame of a whole step. The
run goes on in eager, and a later run gets the code if its guards fit. Other frames have
objects that the step changes as it goes on, such as a cache of keys: one of them is
converted in each run, which waits for it, and the others run in eager.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from torchproof.process import forks
from torchproof.records import collector_paused
from torchproof.runtime.background import Background, Prepared, Task
from torchproof.runtime.compile_job import DeadlinePassed, Job, convert
from torchproof.runtime.tensors import rng_state
from torchproof.torch_private import frames, thread_state

_alive: list[Any] = []  # for ever: Dynamo keeps pointers to backends


class Loading:
    """Imports modules in a thread: calls become slower, but none waits for all."""

    def __init__(self, load: Callable[[], None]) -> None:
        self.is_done = False
        self._load = load
        forks.register(self)
        Task(self._run, "torchproof-stage")

    def after_fork(self) -> None:
        """The thread exists in the parent only: what needs a module imports it."""
        self.is_done = True

    def _run(self) -> None:
        try:
            with (
                thread_state.loading_compiler(),
                collector_paused(),
                rng_state.restores_suppressed(),  # callers draw meanwhile
            ):
                self._load()
        finally:  # what failed here fails again where it is needed
            self.is_done = True


class PartialTrace:
    """Converts the frames of one stage, in several runs of the step."""

    def __init__(self) -> None:
        self.skipped = False  # whether a frame of the last run was not converted yet
        self._may_skip = False
        self._has_converted = False  # in this run
        self._is_whole = False
        self._first: CodeType | None = None  # of the first frame
        self._begun = False  # a thread did, for code that no frame has used yet
        self._background = Background(self._prepare, lambda: None)

    @property
    def is_under_way(self) -> bool:
        return bool(self._background.pending)

    def of(
        self, backend: Any, *, whole: bool
    ) -> contextlib.AbstractContextManager[Any]:
        """What torch.compile returns inside is traced here.

        It is the `whole` step if nothing runs before its first frame.
        """
        self._is_whole = whole
        _alive.append(backend)
        return frames.intercept_conversions(self._convert, backend)

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        """Only inside, a frame may have to wait for another run."""
        self.skipped = self._has_converted = False
        self._may_skip = True
        try:
            yield
        finally:
            self._may_skip = False

    def _convert(self, conversion: frames.Conversion) -> Any:
        if not self._may_skip or conversion.is_trivial():
            return _answer_here(conversion)
        if self._is_for_thread(conversion):
            if (prepared := self._background.prepared(conversion)) is not None:
                self._background.forget(conversion.code, prepared)
                self._begun = False
                return prepared.answer
            if not self._begun and self._background.begin(conversion, None):
                self._begun = self.skipped = True
        if self.skipped or self._has_converted:
            self.skipped = True
            return frames.eager_once(inner=False)
        answer = _answer_here(conversion)
        self._has_converted = frames.is_compiled_code(answer)
        return answer

    def _is_for_thread(self, conversion: frames.Conversion) -> bool:
        self._first = self._first or conversion.code
        return self._is_whole and conversion.code is self._first

    def _prepare(self, conversion: frames.Conversion, call: object) -> Prepared | None:
        """Dynamo's answer; None after an error, which the next run will raise."""
        job = Job(float("inf"), codegen_in_child=False, in_background=True)
        try:
            with collector_paused():
                return Prepared(convert(conversion, job), job)
        except (Exception, DeadlinePassed):
            return None


def _answer_here(conversion: frames.Conversion) -> Any:
    return conversion.callback(conversion.frame, conversion.entry, conversion.state)
