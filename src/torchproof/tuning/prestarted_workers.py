"""Processes that load the target before it is known which candidate they will run.

Loading takes as long as compiling for many a model: it is done while others compile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from torchproof.measure import WorkerProcess


class PrestartedWorkers:
    """At most `count` of them; `start` begins one, which loads by itself."""

    def __init__(self, start: Callable[[], WorkerProcess], count: int) -> None:
        self._start, self._count = start, count
        self._ready: list[WorkerProcess] = []
        self._lock = threading.Lock()
        self._closed = False

    def fill(self) -> None:
        with self._lock:
            while len(self._ready) < self._count and not self._closed:
                self._ready.append(self._start())

    def take(self) -> WorkerProcess | None:
        """The one that has loaded longest; None where there is none."""
        with self._lock:
            return self._ready.pop(0) if self._ready else None

    def drop(self) -> None:
        """They hold memory that something else needs."""
        with self._lock:
            for process in self._ready:
                process.close()
            self._ready.clear()

    def close(self) -> None:
        self._closed = True
        self.drop()
