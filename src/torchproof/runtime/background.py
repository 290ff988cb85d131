"""Work beside the caller: one thread compiles while calls run eager (`wait=False`).

`Background.begin` queues a compilation for a frame; `Background.prepared` returns the
finished compilation that fits a later call. All models share the thread, because torch
compiles one thing at a time. It ends when its queue is empty.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from torchproof.process import forks, frames_of_threads
from torchproof.runtime.compile_job import Job, seconds_until
from torchproof.torch_private import frames, thread_state

_KEPT = 4  # per function: a model that keeps changing needs only the latest
_AT_EXIT_S = 2.0  # how long the process waits at exit for the thread
_IMPORT_S = 5.0  # how long a fork waits for imports
_LOOK_EVERY_S = 0.002

process_is_exiting = threading.Event()


_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def _start(work: Callable[[], None], name: str) -> threading.Thread:
    """Starts a daemon, which must not keep the process from ending.

    Raises `RuntimeError` if the system allows no further thread.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    _threads.add(thread)
    return thread


def _wait_for_imports() -> None:
    """Before a fork: the child could never finish loading a half-loaded module."""
    until = time.monotonic() + _IMPORT_S
    while _is_importing() and time.monotonic() < until:
        time.sleep(_LOOK_EVERY_S)


def _is_importing() -> bool:
    own = {each.ident for each in forks.alive(_threads) if each.is_alive()}
    own.discard(threading.get_ident())
    stacks = frames_of_threads() if own else {}
    return any(_imports(stacks.get(ident or 0)) for ident in own)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None and "importlib" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


os.register_at_fork(before=_wait_for_imports, after_in_child=_threads.clear)


class Task:
    """Work in a thread of its own; it sets `value` or `error` when it ends."""

    def __init__(self, work: Callable[[], Any], name: str) -> None:
        self._work = work
        self._ended = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None
        _start(self._run, name)

    def _run(self) -> None:
        try:
            self.value = self._work()
        except BaseException as error:
            self.error = error
        finally:
            del self._work
            self._ended.set()

    def wait(self, until: float) -> bool:
        """Waits until then, a time of `time.monotonic`; whether it has ended."""
        return self._ended.wait(seconds_until(until))


class _Compiler:
    """The thread that compiles in the background, while there is something to do."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._queue: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        forks.register(self)

    def after_fork(self) -> None:
        """The thread exists in the parent only."""
        self._queue.clear()
        self._thread = None

    def submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._thread is None:  # it waits for the lock, then finds the work
                self._thread = _start(self._run, "torchproof-background")
            self._queue.append(work)

    def _run(self) -> None:
        while not process_is_exiting.is_set():
            with self._lock:
                if not self._queue:
                    self._thread = None
                    return
                work = self._queue.popleft()
            try:
                work()
            except BaseException:  # of a listener's, for example
                error = (*sys.exc_info(), self._thread)
                threading.excepthook(threading.ExceptHookArgs(error))
                del error
            del work  # it references the tensors of a call

    def join(self, seconds: float) -> None:
        if (thread := self._thread) is not None:
            thread.join(seconds)


_compiler = _Compiler()


@atexit.register
def _stop() -> None:
    """A thread that returns from C after the interpreter has ended would crash.

    Tracing ends at its next instruction, and code generation with its child.
    """
    process_is_exiting.set()
    Job.end_all()
    _compiler.join(_AT_EXIT_S)


@dataclass(frozen=True)
class Prepared:
    """A finished compilation; the guards of `answer` decide which calls it may fit."""

    answer: Any
    job: Job

    def fits(self, conversion: frames.Conversion) -> bool:
        # Without compiled code there are no guards, and it fits every call.
        is_code = frames.is_compiled_code(self.answer)
        return not is_code or frames.fits(self.answer, conversion)


# Takes the frame and the number of its call; runs with the state of the call's thread.
Prepare = Callable[[frames.Conversion, int | None], Prepared | None]


class Background:
    """Compiles the functions of one model, each at most once at a time."""

    def __init__(self, prepare: Prepare, deliver: Callable[[], None]) -> None:
        self._prepare = prepare
        self._deliver = deliver
        self._lock = forks.lock()
        self._pending: set[CodeType] = set()
        self._prepared: dict[CodeType, deque[Prepared]] = {}
        forks.register(self)

    def after_fork(self) -> None:
        self._pending.clear()

    @property
    def pending(self) -> tuple[CodeType, ...]:
        return tuple(self._pending)

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

    def begin(self, conversion: frames.Conversion, call: int | None) -> bool:
        """Queues a compilation for this call, unless the function is being compiled.

        False if no other thread can compile under the state of this one. Raises
        `RuntimeError` if the system allows no further thread.
        """
        code = conversion.code
        state = thread_state.ThreadState()
        if state.why_not is not None:
            return False
        with self._lock:
            if code in self._pending:
                return True
            self._pending.add(code)
        copy = conversion.with_frame_copy()
        work = functools.partial(self._prepare, copy, call)
        try:
            _compiler.submit(functools.partial(self._work, code, state, work))
        except RuntimeError:
            self._pending.discard(code)
            raise
        return True

    def _work(
        self,
        code: CodeType,
        state: thread_state.ThreadState,
        work: Callable[[], Prepared | None],
    ) -> None:
        item = None
        try:
            item = state.run(work)
        finally:
            with self._lock:
                if item is not None:
                    self._prepared.setdefault(code, deque(maxlen=_KEPT)).append(item)
                self._pending.discard(code)
            self._deliver()
