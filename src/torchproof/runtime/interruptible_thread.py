"""Threads that can be interrupted, so that their caller can go on.

An interrupt raises `Interrupted` in a Python loop of the thread. A call into C that
does not return cannot be ended from inside the process: its thread remains, and
`InterruptibleThread.stop` reports it as stuck.
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

from torchproof.process import forks, frames_of_threads

_INTERRUPT_EVERY_S = 0.05
_LOOK_EVERY_S = 0.002
_WAITS = frozenset({"sleep", "poll", "select", "waitpid", "flock"})

# Code that is never interrupted: functions that C++ calls back, functions that clean
# up for others, and this package.
_NEVER_INTERRUPTED = (
    "/torch/_library/",
    "/torch/_ops.py",
    "/torch/utils/_python_dispatch.py",
    "/torch/utils/_config_module.py",
    "/torch/utils/weak.py",
    "/contextlib.py",
    "/weakref.py",
    "/threading.py",
    "/logging/__init__.py",
    os.path.join(os.path.dirname(__file__), ""),
)
_IMPORT_S = 5.0  # how long a fork waits for imports
_AT_EXIT_S = 2.0  # how long the process waits at exit for all running threads


def seconds_until(until: float) -> float:
    """The seconds until a time of `time.monotonic`, in the range `threading` takes."""
    return min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX)


class Interrupted(BaseException):
    """Raised in a thread whose caller no longer waits for it.

    Not an `Exception`: the compiler catches those and would go on. `phase` says what
    the thread was doing.
    """

    def __init__(self, phase: str | None = None) -> None:
        super().__init__()
        self.phase = phase


class InterruptibleThread:
    """A thread that starts at once; it sets `value` or `error` when it ends."""

    def __init__(self, work: Callable[[], Any], name: str) -> None:
        self._work = work
        self.ended = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None
        # A daemon: a stuck thread must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _threads.add(self)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.value = self._work()
        except BaseException as error:
            self.error = error
        finally:
            del self._work  # it references the tensors of the call
            self.ended.set()

    @property
    def name(self) -> str:
        return self._thread.name

    @property
    def thread_id(self) -> int:
        return self._thread.ident or 0

    def wait(self, until: float) -> bool:
        """Waits until then, a time of `time.monotonic`; whether it has ended."""
        return self.ended.wait(seconds_until(until))

    def stop(self, patience_s: float) -> bool:
        """Interrupts the thread until it ends; False if it is stuck."""
        until, interrupted = time.monotonic() + patience_s, False
        while not self.ended.is_set() and time.monotonic() < until:
            if _interrupt(self.thread_id):
                interrupted = True
                # Code may catch the interrupt and go on: interrupt it again.
                self.ended.wait(_INTERRUPT_EVERY_S)
            else:
                self.ended.wait(_LOOK_EVERY_S)
        if interrupted:
            _clear_pending()
        return self.ended.is_set()

    def stack(self) -> list[traceback.FrameSummary]:
        """The thread's stack, innermost frame last."""
        return stack_of(self.thread_id)


process_is_exiting = threading.Event()
_threads: weakref.WeakSet[InterruptibleThread] = weakref.WeakSet()


def _wait_for_imports() -> None:
    """Before a fork: the child could never finish loading a half-loaded module."""
    until = time.monotonic() + _IMPORT_S
    while _is_importing() and time.monotonic() < until:
        time.sleep(_LOOK_EVERY_S)


def _is_importing() -> bool:
    frames = frames_of_threads()
    others = {thread.thread_id for thread in list(_threads)} - {threading.get_ident()}
    return any(_imports(frames[thread_id]) for thread_id in others & frames.keys())


os.register_at_fork(
    before=_wait_for_imports,
    after_in_child=_threads.clear,  # the child has none of the parent's threads
)


@atexit.register
def _stop_all() -> None:
    """A thread that returns from C after the interpreter has ended would crash."""
    process_is_exiting.set()
    until = time.monotonic() + _AT_EXIT_S
    for thread in list(_threads):
        thread.stop(until - time.monotonic())


def stack_of(thread_id: int) -> list[traceback.FrameSummary]:
    """The stack of a thread, innermost frame last; empty if the thread has ended."""
    frame = frames_of_threads().get(thread_id)
    if frame is None:
        return []
    # Source lines are not read: a hung file system must not hang this thread too.
    stack = traceback.StackSummary.extract(
        traceback.walk_stack(frame), lookup_lines=False
    )
    return list(stack)[::-1]


@contextlib.contextmanager
def interrupt_after(until: float, is_late: Callable[[int], bool]) -> Iterator[None]:
    """Raises `Interrupted` in this thread if the body has not ended by then.

    For work that only this thread can do. `is_late` takes the thread's id; only if it
    returns True is the thread interrupted.
    """
    lock = threading.Lock()
    over = threading.Event()
    sent = threading.Event()
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
            # An interrupt that is still pending must not arrive in the caller's code.
            _clear_pending()


def _clear_pending() -> None:
    """Receives an interrupt in this thread, so that no exception stays pending.

    CPython before 3.13 has one flag for all threads that an exception is pending, and
    clears it when one arrives. If the thread ended first, the interpreter would look
    for the exception at every jump from then on, and a profiler would never end.
    """
    try:
        _raise_in(threading.get_ident())
        while True:
            pass
    except Interrupted:
        pass  # the one that was raised above, or one that was still pending


_SHORT_INTERVAL_S = 1e-6
_interval_lock = forks.lock()
_interval_users = 0  # of `short_switch_interval`
_usual_interval_s = 0.0


@contextlib.contextmanager
def short_switch_interval() -> Iterator[None]:
    """Shortens the interpreter's switch interval while background work runs.

    A torch operation releases the GIL while it computes. By default it then waits 5 ms
    to get it back from a thread that is busy in Python. The wait cannot be too short:
    100 products of 0.1 ms took 837 ms beside such a thread with 5 ms, 140 ms with
    0.2 ms, and 31 ms with 1 us, and the thread still had 80% of its speed.
    """
    global _interval_users, _usual_interval_s
    with _interval_lock:
        if not _interval_users:
            _usual_interval_s = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual_interval_s, _SHORT_INTERVAL_S))
        _interval_users += 1
    try:
        with forks.undone_in_fork(_restore_interval):
            yield
    finally:
        _restore_interval()


def _restore_interval() -> None:
    global _interval_users
    with _interval_lock:
        _interval_users -= 1
        if not _interval_users:
            sys.setswitchinterval(_usual_interval_s)


def _interrupt(thread_id: int) -> bool:
    """Raises `Interrupted` in a thread that is in a Python loop; else returns False.

    The thread raises an exception set from outside at its next Python instruction. If
    the thread is in C++, that may be in a callback where C++ does not allow exceptions,
    and the process would abort. A thread that released the GIL at the backward jump of
    a loop raises it there.
    """
    frame = frames_of_threads().get(thread_id)
    if frame is None or not _is_interruptible(frame):
        return False
    _raise_in(thread_id)
    return True


def _is_interruptible(frame: FrameType) -> bool:
    instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    at_jump = "JUMP_BACKWARD" in instruction
    if not at_jump and frame.f_lasti not in _plain_waits(frame.f_code):
        return False
    if any(part in frame.f_code.co_filename for part in _NEVER_INTERRUPTED):
        return False
    return not _imports(frame.f_back)  # an interrupted import leaves a broken module


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if "importlib" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=256)
def _plain_waits(code: CodeType) -> frozenset[int]:
    """The offsets at which code calls a C function that only waits."""
    offsets = set()
    name = None
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith("LOAD_"):
            name = instruction.argval if isinstance(instruction.argval, str) else name
        elif "CALL" in instruction.opname and name in _WAITS:
            offsets.add(instruction.offset)
    return frozenset(offsets)


def _raise_in(thread_id: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), ctypes.py_object(Interrupted)
    )
