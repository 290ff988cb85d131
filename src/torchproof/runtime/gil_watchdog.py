"""Names the place of a C call that holds the interpreter and never comes back.

No thread of this process runs then, so none can say so. A timer of the system sends a
signal, on which faulthandler prints the stacks of all threads without the interpreter.
The timer that faulthandler has itself is left alone: there is one in a process, and it
may be the user's own watchdog.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import signal
import sys
from collections.abc import Iterator

_CLOCK_MONOTONIC = 1
_LONGEST_S = 1e9  # what is to take longer has no end to watch


class _Event(ctypes.Structure):
    """struct sigevent: who is told when the timer ends, by a signal to the process."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("how", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _Times(ctypes.Structure):
    """struct itimerspec: once, after so many seconds and nanoseconds."""

    _fields_ = (
        ("every_s", ctypes.c_long),
        ("every_ns", ctypes.c_long),
        ("after_s", ctypes.c_long),
        ("after_ns", ctypes.c_long),
    )


@contextlib.contextmanager
def dump_stacks_after(after_s: float) -> Iterator[None]:
    """Prints where every thread is if the body takes longer than this."""
    number = _registered()
    timer = None
    if number is not None and after_s < _LONGEST_S:
        timer = _start(number, after_s)
    try:
        yield
    finally:
        if timer is not None:
            _timers().timer_delete(timer)


@functools.cache
def _registered() -> int | None:
    """A signal that nobody uses, which prints the stacks from here on."""
    if not sys.platform.startswith("linux"):
        return None
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if signal.getsignal(number) == signal.SIG_DFL:
            try:
                faulthandler.register(number, all_threads=True)
            except (ValueError, RuntimeError, OSError):  # no stderr to print to
                return None
            return number
    return None


@functools.cache
def _timers() -> ctypes.CDLL:
    """The library that has them: before glibc 2.34 one of their own."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "timer_create") else ctypes.CDLL("librt.so.1")


def _start(number: int, after_s: float) -> ctypes.c_void_p | None:
    try:
        library = _timers()
    except OSError:
        return None  # another C library
    event, timer = _Event(signal=number), ctypes.c_void_p()
    if library.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        return None
    seconds = int(after_s)
    times = _Times(after_s=seconds, after_ns=int((after_s - seconds) * 1e9))
    if library.timer_settime(timer, 0, ctypes.byref(times), None):
        library.timer_delete(timer)
        return None
    return timer
