"""Notes the files that a script writes, renames or removes; needs no torch.

Python reports what it opens itself. What native code writes, as `torch.save` does, is
seen by its time in the folders that the script is about. Temporary files, hidden ones
and caches do not count.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchproof.targets import Target

_WRITING = os.O_WRONLY | os.O_RDWR
# The events of changes, by how many of their arguments are paths.
_CHANGES = {
    "open": 1,
    "os.chdir": 1,  # what follows is relative to it
    "os.link": 2,
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.symlink": 2,
    "shutil.rmtree": 1,
}
_MOST = 20_000  # files of a folder whose times are read
_CACHES = (".", "__pycache__", "torchinductor_")
_TEMPORARY = os.path.realpath(tempfile.gettempdir())
_ELSEWHERE = ("/dev", "/proc", "/sys", _TEMPORARY)


class Notes:
    """What Python reports from now on."""

    def __init__(self, target: Target) -> None:
        self._begin, self._here = time.time_ns(), os.getcwd()
        around = {os.path.realpath(each) for each in _folders(target)}
        self._folders = {each for each in around if not _is_in(_TEMPORARY, each)}
        self._events: list[tuple[str, tuple[Any, ...]]] = []
        self._ended = False
        sys.addaudithook(self.note)

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook; calls no function, which Dynamo would compile."""
        if event in _CHANGES and not self._ended:
            if event == "open" and not (arguments[2] or 0) & _WRITING:
                return
            self._events.append((event, arguments))

    def files(self) -> list[str]:
        """The files, those below the working folder first; no more are noted."""
        self._ended = True
        paths = set(self._reported())
        for folder in self._folders:
            paths |= set(_changed(folder, self._begin))
        found = filter(self._counts, paths)
        shown = {os.path.relpath(each, self._here) for each in found}
        return sorted(shown, key=lambda each: (each.startswith(".."), each))

    def _reported(self) -> Iterator[str]:
        here = self._here
        for event, arguments in self._events:
            paths = arguments[: _CHANGES[event]]
            if any(not isinstance(each, (str, bytes, os.PathLike)) for each in paths):
                continue  # a descriptor
            full = [os.path.join(here, os.fsdecode(each)) for each in paths]
            if event == "os.chdir":
                [here] = full
            # A path in an open folder: whoever opened it said which one.
            elif event == "open" or arguments[-1] == -1 or arguments[-1] is None:
                yield from map(os.path.realpath, full)

    def _counts(self, path: str) -> bool:
        """Whether a file is the script's own output: neither temporary nor a cache."""
        inside = [os.path.relpath(path, f) for f in self._folders if _is_in(path, f)]
        elsewhere = not inside and any(_is_in(path, each) for each in _ELSEWHERE)
        parts = Path(min(inside, key=len, default=path)).parts
        return not elsewhere and not any(part.startswith(_CACHES) for part in parts)


def _folders(target: Target) -> Iterator[str]:
    """Where the script runs and is, and the folders that its arguments name."""
    yield os.getcwd()
    yield os.path.dirname(os.path.abspath(target.where))
    for argument in target.arguments:
        path = argument.rpartition("=")[2]
        yield from filter(os.path.isdir, (path, os.path.dirname(path)))


def _changed(folder: str, since_ns: int) -> Iterator[str]:
    for path in itertools.islice(_files(folder), _MOST):
        try:
            is_new = os.stat(path).st_mtime_ns >= since_ns
        except OSError:
            continue
        if is_new:
            yield path


def _files(folder: str) -> Iterator[str]:
    for root, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(_CACHES)]
        yield from (os.path.join(root, name) for name in names)


def _is_in(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)
