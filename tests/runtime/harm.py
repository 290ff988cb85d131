"""Faults that need no code of their own to go wrong: storms of changes, and files."""

from __future__ import annotations

import fcntl
import os
import resource
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
from injections import Injection

# -- storms ----------------------------------------------------------------------------


class Storm(Injection):
    """Something that compiled code depends on is another at each call."""

    fired = True  # by being called


class NumbersChange(Storm):
    def change(self, model: Any, number: int) -> None:
        model.factor = 2 + number


class TextsChange(Storm):
    def change(self, model: Any, number: int) -> None:
        model.label = "x" * number


class SizesChange(Storm):
    """`dynamic=False` forbids code for sizes that vary."""

    arguments = MappingProxyType({"dynamic": False})

    def rows(self, number: int) -> int:
        return 6 + number


# -- files -----------------------------------------------------------------------------


class NoCacheFolder(Injection):
    """The cache cannot be written: its folder would lie inside a file."""

    def arm(self) -> None:
        (self.folder / "file").touch()
        self._usual = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self.folder / "file" / "cache")
        self.mark.touch()

    def disarm(self) -> None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = self._usual


class FullDisk(Injection):
    """No file can grow beyond a few bytes, in this process and those it starts."""

    def arm(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (16, hard))
        self.mark.touch()


class _Filled(Injection):
    """Does harm to files that an earlier compilation of the same graphs has left."""

    fills_cache = True

    def arm(self) -> None:
        for path in Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*"):
            if path.is_file() and self.concerns(path):
                self.mark.touch()
                self.harm(path)

    def concerns(self, path: Path) -> bool:
        raise NotImplementedError

    def harm(self, path: Path) -> None:
        """Another file in its place: the first may be in use by this process."""
        broken = bytes(byte ^ 0xFF for byte in path.read_bytes())
        path.unlink()
        path.write_bytes(broken)


class BrokenEntries(_Filled):
    def concerns(self, path: Path) -> bool:
        return bool({"fxgraph", "aotautograd"}.intersection(path.parts))


class BrokenLibraries(_Filled):
    def concerns(self, path: Path) -> bool:
        return path.suffix == ".so"


class LocksHeld(BrokenEntries):
    """The files are gone, and somebody else holds all locks."""

    def arm(self) -> None:
        super().arm()
        self._held = []
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        for path in folder.rglob("*.lock"):
            file = path.open("a")
            fcntl.flock(file, fcntl.LOCK_EX)
            self._held.append(file)

    def concerns(self, path: Path) -> bool:
        return super().concerns(path) or path.suffix == ".so"

    def harm(self, path: Path) -> None:
        path.unlink()
