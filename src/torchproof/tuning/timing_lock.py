"""Who may use the machine: many that begin, or one that is timed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class TimingLock:
    """Beginning is compiling, which leaves most cores idle: several do it at once.

    Who is timed is alone. It waits for those that are beginning, and nobody else begins
    before it had its turn.
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
