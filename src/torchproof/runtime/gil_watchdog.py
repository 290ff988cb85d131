"""Prints all stacks if a C call holds the GIL and does not return.

No Python thread can run then. A POSIX timer sends a signal, and faulthandler's signal
handler prints the stacks of all threads without the GIL. faulthandler's own timer is
not used: there is one per process, and it may be the user's own watchdog.
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
_LONGEST_S = 1e9  # longer deadlines are not watched


class _Event(ctypes.Structure):
    """struct sigevent: the timer sends a signal to the process."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("how", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _Times(ctypes.Structure):
    """struct itimerspec: fire once, after some seconds and nanoseconds."""

    _fields_ = (
        ("every_s", ctypes.c_long),
        ("every_ns", ctypes.c_long),
        ("after_s", ctypes.c_long),
        ("after_ns", ctypes.c_long),
    )


@contextlib.contextmanager
def dump_stacks_after(after_s: float) -> Iterator[None]:
    """Prints the stacks of all threads if the body takes longer than this."""
    number = _dump_signal()
    timer = None
    if number is not None and after_s < _LONGEST_S:
        timer = _start(number, after_s)
    try:
        yield
    finally:
        if timer is not None:
            _timers().timer_delete(timer)


@functools.cache
def _dump_signal() -> int | None:
    """Registers faulthandler for an unused real-time signal; returns its number."""
    if not sys.platform.startswith("linux"):
        return None
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if signal.getsignal(number) == signal.SIG_DFL:
            try:
                faulthandler.register(number, all_threads=True)
            except (ValueError, RuntimeError, OSError):  # there is no stderr
                return None
            return number
    return None


@functools.cache
def _timers() -> ctypes.CDLL:
    """The library with the timer functions: librt before glibc 2.34."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "timer_create") else ctypes.CDLL("librt.so.1")


def _start(number: int, after_s: float) -> ctypes.c_void_p | None:
    try:
        library = _timers()
    except OSError:
        return None  # another C library
    event = _Event(signal=number)
    timer = ctypes.c_void_p()
    if library.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        return None
    seconds = int(after_s)
    times = _Times(after_s=seconds, after_ns=int((after_s - seconds) * 1e9))
    if library.timer_settime(timer, 0, ctypes.byref(times), None):
        library.timer_delete(timer)
        return None
    return timer
