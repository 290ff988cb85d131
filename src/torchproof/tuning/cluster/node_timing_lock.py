"""The timing lock of a node, for workers in several processes."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from torchproof.tuning.timing_lock import TimingLock


class NodeTimingLock(TimingLock):
    """Uses file locks, which the kernel releases if a worker is killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._turn, self._inside = folder / "turn", folder / "inside"

    @contextlib.contextmanager
    def beside_others(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            # A worker that waits for timing holds the turn, so no other one starts.
            with _locked(self._turn, fcntl.LOCK_EX):
                stack.enter_context(_locked(self._inside, fcntl.LOCK_SH))
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with _locked(self._turn, fcntl.LOCK_EX), _locked(self._inside, fcntl.LOCK_EX):
            yield


@contextlib.contextmanager
def _locked(file: Path, how: int) -> Iterator[None]:
    with open(file, "a") as opened:
        fcntl.flock(opened, how)
        yield
