"""The current frames of all threads, without a deadlock of CPython 3.11."""

from __future__ import annotations

import gc
import sys
from types import FrameType


def frames_of_threads() -> dict[int, FrameType]:
    """The innermost frame of each thread, by the thread's ident.

    `sys._current_frames` holds a lock of the interpreter while it creates frames. If
    that starts a garbage collection which frees a `threading.local`, the thread waits
    for the lock that it holds (python/cpython#106883).
    """
    if not gc.isenabled():
        return sys._current_frames()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()
