"""Reads the log file, and appends to it under a lock.

Existing bytes are never rewritten: byte order mark, line endings and text stay as they
are.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from torchproof.records import UserError, files

DEFAULT = Path("experiment-log.md")
ENDINGS = ("", ".md", ".markdown", ".txt")  # torchproof appends to no other files
_MOST_BYTES = 1 << 30
LINE = re.compile(r"\r\n|\n|\r")
HEADER = """# Experiment log

Plans, observations and retrospectives, oldest entry first.
`torchproof log` appends entries and never changes existing text.
You can write between the entries.
"""


def read(path: Path) -> str | None:
    """The text of the log; None if there is no file."""
    _assert_kind(path)
    try:
        return _text(path, files.read_bytes(path, _MOST_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def append(path: Path, write: Callable[[str], str]) -> int:
    """Appends `write(text of the log)` and returns the line where it begins.

    The lock covers reading and writing, so no other process changes the log in between.
    A write that fails halfway is undone.
    """
    _assert_kind(path)
    if not path.exists():
        write("")  # fails before the file is created
    try:
        with _locked(path) as file:
            before = _bytes(file)
            text = _text(path, before)
            added, line = _fitted(text, write(text))
            _add(file, len(before), added.encode())
            return line
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def _assert_kind(path: Path) -> None:
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"{path} is not a Markdown file: use a name such as {DEFAULT}")
    try:
        if files.is_taken(path):
            files.open_regular(path).close()
    except OSError as error:
        raise UserError(
            f"cannot use {path}: {error.strerror}; choose a file with --file"
        ) from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The file, open at its end, for one process at a time."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            # An editor may have replaced the file meanwhile.
            if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
                yield file
                return
        finally:
            os.close(file)  # and with it the lock


def _bytes(file: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(file), "rb") as reader:
        return reader.read()


def _text(path: Path, content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path} is not in UTF-8 (line {line}): convert it, or choose another"
            " file with --file"
        ) from None
    if "\0" in text:
        raise UserError(f"{path} is not a text file: choose another with --file")
    return text


def _fitted(text: str, entry: str) -> tuple[str, int]:
    """The entry with the file's line endings and an empty line above, and its line."""
    lines = LINE.split(text)
    gap = "\n" if lines[-1] else ""
    gap += "\n" if (lines[-1] or lines[-2:][0]).strip() else ""
    if not text.strip():
        gap += f"{HEADER}\n"
    added, line = gap + entry, len(LINE.split(text + gap))
    windows = text.count("\r\n") > text.count("\n") / 2
    return (added.replace("\n", "\r\n") if windows else added), line


def _add(file: int, size: int, data: bytes) -> None:
    written = 0
    try:
        while written < len(data):
            written += os.write(file, data[written:])
    except OSError:
        os.ftruncate(file, size)
        raise
