"""A lock that lets several trials compile at once, or a single one be timed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class TimingLock:
    """Several trials start at once, since compilation leaves most cores idle.

    A trial is timed alone. It waits until all others have started, and no further trial
    starts before its timing is over.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._beginning = self._waiting = 0
        self._timing = False

    @contextlib.contextmanager
    def beside_others(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not (self._timing or self._waiting))
            self._beginning += 1
        try:
            yield
        finally:
            with self._changed:
                self._beginning -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not (self._timing or self._beginning))
            self._waiting -= 1
            self._timing = True
        try:
            yield
        finally:
            with self._changed:
                self._timing = False
                self._changed.notify_all()
