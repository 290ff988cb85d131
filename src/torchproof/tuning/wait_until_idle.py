"""Waits until what this process has started is idle.

Compiling leaves processes behind that go on for seconds, as Inductor's pool does while
it starts: a step that waits for launches takes twice as long beside them.
"""

from __future__ import annotations

import contextlib
import time

import psutil

_LOOK_S = 0.25
_BUSY = 0.2  # cores, of all processes together
_LONGEST_S = 8.0


def wait(longest_s: float = _LONGEST_S) -> float:
    """The seconds that it took; not longer than this, idle or not."""
    begin, before = time.monotonic(), _spent_s()
    while (waited := time.monotonic() - begin) < longest_s:
        time.sleep(_LOOK_S)
        now = _spent_s()
        if now - before < _BUSY * _LOOK_S:
            break
        before = now
    return waited


def _spent_s() -> float:
    """Processor time of all descendants so far; those that ended are left out."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
