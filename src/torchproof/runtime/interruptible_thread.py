"""Work that can be given up: it runs in a thread of its own, and its caller goes on.

A loop in Python ends where it is interrupted. A call into C that does not come back
cannot be ended from inside a process: its thread stays, and is said to be stuck.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dis
import functools
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from torchproof.process import forks

_INTERRUPT_EVERY_S = 0.05
_LOOK_EVERY_S = 0.002
_WAITS = frozenset({"sleep", "poll", "select", "waitpid", "flock"})
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
# What C++ calls back, what cleans up behind others, and this package.
_LEFT_ALONE = (
    "/torch/_library/",
    "/torch/_ops.py",
    "/torch/utils/_python_dispatch.py",
    "/torch/utils/_config_module.py",
    "/torch/utils/weak.py",
    "/contextlib.py",
    "/weakref.py",
    "/threading.py",
    "/logging/__init__.py",
    *(os.path.join(_PACKAGE, room, "") for room in ("runtime", "replay", "tensors")),
)
_IMPORT_S = 5.0  # that a fork waits for them
_AT_EXIT_S = 2.0  # for all threads that are at work when the process ends


def seconds_until(until: float) -> float:
    """How long to wait for a time of `time.monotonic`, as `threading` takes it."""
    return min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX)


class Interrupted(BaseException):
    """Raised inside work whose caller no longer waits for it.

    Not an `Exception`: the compiler catches those, and would go on. `phase` says what
    the work was doing.
    """

    def __init__(self, phase: str | None = None) -> None:
        super().__init__()
        self.phase = phase


class InterruptibleThread:
    """Work in a thread, from when it is made; `value` or `error` once it has ended."""

    def __init__(self, work: Callable[[], Any], name: str) -> None:
        self._work = work
        self._ended = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None
        # A daemon, so that a stuck one does not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _under_way.add(self)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.value = self._work()
        except BaseException as error:
            self.error = error
        finally:
            del self._work  # and with it the tensors of the call
            self._ended.set()

    @property
    def name(self) -> str:
        return self._thread.name

    @property
    def thread_id(self) -> int:
        return self._thread.ident or 0

    def wait(self, until: float) -> bool:
        """Whether it has ended by then, a time of `time.monotonic`."""
        return self._ended.wait(seconds_until(until))

    def stop(self, patience_s: float) -> bool:
        """Interrupts it until it has ended; False if it is stuck."""
        until, interrupted = time.monotonic() + patience_s, False
        while not self._ended.is_set() and time.monotonic() < until:
            if _interrupt(self.thread_id):
                interrupted = True
                # Code that catches everything and goes on is interrupted again.
                self._ended.wait(_INTERRUPT_EVERY_S)
            else:
                self._ended.wait(_LOOK_EVERY_S)
        if interrupted:
            _settle()
        return self._ended.is_set()

    def stack(self) -> list[traceback.FrameSummary]:
        """Where it is, innermost last."""
        return stack_of(self.thread_id)


process_is_exiting = threading.Event()
_under_way: weakref.WeakSet[InterruptibleThread] = weakref.WeakSet()


def _wait_for_imports() -> None:
    """Before a fork: a module that is half loaded there could never be loaded."""
    until = time.monotonic() + _IMPORT_S
    while _is_importing() and time.monotonic() < until:
        time.sleep(_LOOK_EVERY_S)


def _is_importing() -> bool:
    frames, here = sys._current_frames(), threading.get_ident()
    threads = {attempt.thread_id for attempt in list(_under_way)} - {here}
    return any(_imports(frames[thread]) for thread in threads & frames.keys())


os.register_at_fork(
    before=_wait_for_imports,
    after_in_child=_under_way.clear,  # threads stay with the parent
)


@atexit.register
def _stop_all() -> None:
    """A thread that comes back from C into an interpreter that is gone would crash."""
    process_is_exiting.set()
    until = time.monotonic() + _AT_EXIT_S
    for attempt in list(_under_way):
        attempt.stop(until - time.monotonic())


def stack_of(thread_id: int) -> list[traceback.FrameSummary]:
    frame = sys._current_frames().get(thread_id)
    # Source lines are not read: a hung file system must not hang this one too.
    return (
        list(
            traceback.StackSummary.extract(
                traceback.walk_stack(frame), lookup_lines=False
            )
        )[::-1]
        if frame
        else []
    )


@contextlib.contextmanager
def interrupt_after(until: float, is_late: Callable[[int], bool]) -> Iterator[None]:
    """Raises `Interrupted` in this thread if the body has not ended by then.

    For work that only this thread can do. `is_late` gets the thread's id and has the
    last word.
    """
    lock, over, sent = threading.Lock(), threading.Event(), threading.Event()
    me = threading.get_ident()

    def watch() -> None:
        if over.wait(seconds_until(until)):
            return
        if not is_late(me):
            return
        while not over.is_set():
            with lock:
                if not over.is_set() and _interrupt(me):
                    sent.set()
            over.wait(_INTERRUPT_EVERY_S if sent.is_set() else _LOOK_EVERY_S)

    watcher = threading.Thread(target=watch, name="torchproof-deadline", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        with lock:
            over.set()
        if sent.is_set():
            # What was sent and has not arrived must not arrive in the caller's code.
            _settle()


def _settle() -> None:
    """Takes in what was sent to this thread, and leaves nothing pending.

    CPython before 3.13 notes in one place for all threads that an exception is pending,
    and clears that when one arrives. One that was sent to a thread which ended first
    would be looked for at every jump from then on, and a profiler would never end.
    """
    try:
        _raise_in(threading.get_ident())
        while True:
            pass
    except Interrupted:
        pass


_turns_lock = forks.lock()
_turns = 0
_usual_turn_s = 0.0


@contextlib.contextmanager
def short_switch_interval() -> Iterator[None]:
    """Threads take turns more often, so that work behind a caller delays it little.

    An operation gives up the interpreter while it computes, and by default waits 5 ms
    to get it back from a thread that is busy in Python.
    """
    global _turns, _usual_turn_s
    with _turns_lock:
        if not _turns:
            _usual_turn_s = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual_turn_s, 2e-4))
        _turns += 1
    try:
        with forks.undone_in_fork(_end_short_turns):
            yield
    finally:
        _end_short_turns()


def _end_short_turns() -> None:
    global _turns
    with _turns_lock:
        _turns -= 1
        if not _turns:
            sys.setswitchinterval(_usual_turn_s)


def _interrupt(thread_id: int) -> bool:
    """Raises `Interrupted` in a thread that is in a loop in Python; False in all else.

    An exception set from outside is raised at the next instruction of Python that the
    thread runs. If it is in C++, that can be a function which C++ calls back where
    nothing may be thrown, and the process would abort. A thread that gave way at the
    jump back of a loop raises it there.
    """
    frame = sys._current_frames().get(thread_id)
    if frame is None or not _is_interruptible(frame):
        return False
    _raise_in(thread_id)
    return True


def _is_interruptible(frame: FrameType) -> bool:
    instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    at_jump = "JUMP_BACKWARD" in instruction
    if not at_jump and frame.f_lasti not in _plain_waits(frame.f_code):
        return False
    if any(part in frame.f_code.co_filename for part in _LEFT_ALONE):
        return False
    return not _imports(frame.f_back)  # modules would stay half loaded


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if "importlib" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=256)
def _plain_waits(code: CodeType) -> frozenset[int]:
    """Where code calls what waits in C, and calls nothing back."""
    found, name = set(), None
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith("LOAD_"):
            name = instruction.argval if isinstance(instruction.argval, str) else name
        elif "CALL" in instruction.opname and name in _WAITS:
            found.add(instruction.offset)
    return frozenset(found)


def _raise_in(thread_id: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), ctypes.py_object(Interrupted)
    )
