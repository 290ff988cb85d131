"""How much of the CPU time that processes asked for they got."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

# Shorter waits say little: every process waits now and then.
_WINDOW_S = 30.0
_LEAST_SHARE = 0.1


class CpuTime(NamedTuple):
    """The seconds that a process ran, and those it could have run on a free CPU."""

    ran_s: float
    waited_s: float


def cpu_time(pid: int) -> CpuTime | None:
    """Of the main thread of a process; None if it ended, or the kernel does not say."""
    with contextlib.suppress(OSError, ValueError):
        ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
        return CpuTime(int(ran) / 1e9, int(waited) / 1e9)
    return None


class CpuShare:
    """Watches processes that run only on CPUs that nothing else wants."""

    def __init__(self, time_of: Callable[[int], CpuTime | None] = cpu_time) -> None:
        self._time_of = time_of
        self._last: dict[int, CpuTime] = {}
        self._ran_s = self._waited_s = 0.0

    def is_starved(self, pids: Iterable[int]) -> bool:
        """Whether they got less than a tenth of what they asked for, for a while."""
        times = {pid: time for pid in pids if (time := self._time_of(pid))}
        for pid, now in times.items():
            before = self._last.get(pid, CpuTime(0.0, 0.0))
            self._ran_s += now.ran_s - before.ran_s
            self._waited_s += now.waited_s - before.waited_s
        self._last = times
        demand_s = self._ran_s + self._waited_s
        if demand_s < _WINDOW_S:
            return False
        starved = self._ran_s < _LEAST_SHARE * demand_s
        self._ran_s = self._waited_s = 0.0
        return starved
