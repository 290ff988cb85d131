"""Where compiled code came from: what torch looked up in its caches, and found."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_COARSE_S = 0.05  # files get their times from a clock that lags by some milliseconds


class CacheLookups:
    """The lookups of this process, and what its cache folders held before it."""

    def __init__(self) -> None:
        self._begun_s = time.time()
        self._missed: set[tuple[str, str]] = set()
        # Which cache, whether it had the graph, whether this process had put it there.
        self.lookups: list[tuple[str, bool, bool]] = []

    def note(self, cache: str, key: str, hit: bool) -> None:
        """One lookup. What missed is put there, so a later hit is the process's own."""
        self.lookups.append((cache, hit, (cache, key) in self._missed))
        if not hit:
            self._missed.add((cache, key))

    def filled_before(self) -> str | None:
        """A cache folder with files that are older than this process.

        Torch does not count all that it takes from there: kernels are found by their
        source, lookups of graphs switched off or not.
        """
        for variable in FOLDERS:
            folder = os.environ.get(variable)
            if folder and any(map(self._is_older, Path(folder).rglob("*"))):
                return folder
        return None

    def _is_older(self, path: Path) -> bool:
        with contextlib.suppress(FileNotFoundError):  # caches rename their files
            return path.is_file() and path.stat().st_ctime < self._begun_s - _COARSE_S
        return False
