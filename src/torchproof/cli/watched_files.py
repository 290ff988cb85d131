"""Files that are watched for saves, by polling.

A file has changed if its content has. Its content is read again when its size, times or
inode differ, and as long as its last change is so recent that the clock of the disk may
not tell the next one apart.
"""

from __future__ import annotations

import ast
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_RECENT_S = 2.0
_SETTLED_S = 0.2  # without another change: a save is complete
_MISSING_S = 1.0  # a file that is missing for longer was deleted or renamed
_POLL_S = 0.1
_SHARE = 10  # of the time that looking takes, to wait between two looks


@dataclass(frozen=True)
class _State:
    """A file when it was last looked at; `digest` is None if it was missing."""

    stat: tuple[int, ...] | None
    digest: bytes | None
    is_recent: bool = False


class WatchedFiles:
    """Files that are compared with what they were at a moment.

    `listed` returns those of a folder, which are watched besides the ones that `begin`
    and `watch` name: a file that is new there has changed.
    """

    def __init__(self, listed: Callable[[], Iterable[str]] = tuple) -> None:
        self._listed = listed
        self._states: dict[str, _State] = {}
        self._first: dict[str, bytes | None] = {}
        self._pause_s = _POLL_S
        self._next_at = 0.0

    def __len__(self) -> int:
        return sum(digest is not None for digest in self._first.values())

    def begin(self, files: Iterable[str]) -> None:
        """From here on, `changed` means: since this moment."""
        self._first = dict.fromkeys(map(os.path.realpath, files))
        self._first = self._now()

    def watch(self, files: Iterable[str]) -> None:
        """Watches other files: those that are new among them, from this moment on."""
        names = dict.fromkeys(map(os.path.realpath, [*files, *self._listed()]))
        self._first = {
            name: self._first[name] if name in self._first else self._digest(name)
            for name in names
        }

    def accept(self, files: Iterable[str]) -> None:
        """Takes these files as they are now for unchanged."""
        self._first |= {name: self._digest(name) for name in files}

    def changed(self) -> list[str]:
        """The files whose content differs, and those that came or went."""
        now = self._now()
        return [f for f in now if now[f] != self._first.get(f)]

    def wait(self) -> list[str]:
        """The files that a save has changed, once it is complete."""
        while True:
            time.sleep(self._pause_s)
            if changed := self.saved():
                return changed

    def saved(self) -> list[str]:
        """As `wait`, but empty if nothing has changed; looks only if it is time to."""
        if time.monotonic() < self._next_at or not self.changed():
            return []
        return self._settled()

    def _settled(self) -> list[str]:
        """What has changed, once nothing changes any more.

        An editor may write a file in pieces, or replace it by another one. Empty if all
        files are again what they were.
        """
        last, since = self._now(), time.monotonic()
        while True:
            time.sleep(self._pause_s)
            now, clock = self._now(), time.monotonic()
            if now != last:
                last, since = now, clock
            missing = any(now[f] is None for f, digest in self._first.items() if digest)
            if clock - since >= (_MISSING_S if missing else _SETTLED_S):
                return self.changed()

    def _now(self) -> dict[str, bytes | None]:
        """The digest of each file."""
        begun = time.monotonic()
        names = dict.fromkeys([*self._first, *map(os.path.realpath, self._listed())])
        self._states = {name: self._looked_at(name) for name in names}
        ended = time.monotonic()
        self._pause_s = max(_POLL_S, _SHARE * (ended - begun))
        self._next_at = ended + self._pause_s
        return {name: state.digest for name, state in self._states.items()}

    def _digest(self, name: str) -> bytes | None:
        self._states[name] = self._looked_at(name)
        return self._states[name].digest

    def _looked_at(self, name: str) -> _State:
        try:
            stat = os.stat(name)
            key = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            known = self._states.get(name)
            if known is not None and known.stat == key and not known.is_recent:
                return known
            recent = abs(time.time() - stat.st_ctime_ns / 1e9) < _RECENT_S
            with open(name, "rb") as file:
                return _State(key, hashlib.sha256(file.read()).digest(), recent)
        except OSError:
            return _State(None, None)


def syntax_error(file: str) -> str | None:
    """The first syntax error of a Python file as one line; None if there is none."""
    try:
        with open(file, "rb") as opened:
            ast.parse(opened.read(), file)
    except SyntaxError as error:
        return f"{file}:{error.lineno or 1}: {type(error).__name__}: {error.msg}"
    except ValueError as error:  # a null byte
        return f"{file}: {error}"
    except (OSError, RecursionError, MemoryError):
        return None  # the check tells
    return None
