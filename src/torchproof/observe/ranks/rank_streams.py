"""The stream of a rank: one file of JSON lines, which outlives the rank.

The first entry relates the clock of the stream to the time of day, so that the streams
of all ranks can be laid on one clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchproof.process import Entry, Stream

_TAIL_BYTES = 4096  # in which the end of a rank is


def stream_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:05}.jsonl"


class RankStream(Stream):
    """Appends entries with their time; each is one write, so none is lost or mixed.

    There is no lock: the garbage collector may report from within any write.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(path, flags, 0o644)
        self._owner = os.getpid()

    def write(self, kind: str, **values: Any) -> None:
        if os.getpid() == self._owner:
            entry = {"kind": kind, "at": round(time.monotonic(), 6), **values}
            line = json.dumps(entry, default=str) + "\n"
            with contextlib.suppress(OSError):  # a full disk must not stop the program
                os.write(self._file, line.encode())

    def begin(self, **facts: Any) -> None:
        """The first entry: who writes, and what time its clock shows."""
        self.write("rank", wall=time.time(), **facts)


class StreamTail:
    """Reads a stream while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def read(self) -> list[Entry]:
        """The entries since the last call; a line without its end is left out."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                whole = file.read().rpartition(b"\n")[0]
        except FileNotFoundError:
            return []
        self._read_bytes += len(whole) + bool(whole)
        return [entry for line in whole.splitlines() for entry in _entries(line)]


def _entries(line: bytes) -> Iterator[Entry]:
    with contextlib.suppress(ValueError):
        entry = json.loads(line)
        if isinstance(entry, dict) and isinstance(entry.get("kind"), str):
            yield entry


def read_stream(path: Path) -> list[Entry]:
    """All entries of a stream."""
    return StreamTail(path).read()


def last_entry(path: Path) -> Entry | None:
    """The last entry of a stream that may still grow."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None
    return next(_entries(lines[-1]), None) if lines else None
