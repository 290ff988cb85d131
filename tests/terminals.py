"""A program on a terminal of its own, and what a person would see of it there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Seen:
    """`sent` is all that came over the terminal, `out` what went to stdout."""

    code: int
    sent: str
    out: str

    @property
    def screen(self) -> list[str]:
        return screen(self.sent)


def run(
    program: str,
    *,
    columns: int = 80,
    rows: int = 40,
    environment: dict[str, str] | None = None,
    when: Callable[[str], int | None] = lambda sent: None,
) -> Seen:
    """Python text with its stderr on a terminal; `when` may ask for a signal."""
    ours, theirs = pty.openpty()
    size = struct.pack("HHHH", rows, columns, 0, 0)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    known = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": paths}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        known.pop(name, None)
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**known, **(environment or {})},
        text=True,
    )
    os.close(theirs)
    try:
        sent = _read(ours, child, when)
        out = child.communicate(timeout=30)[0]
    finally:
        os.close(ours)
        child.kill()
        child.wait()
    return Seen(child.returncode, sent, out)


def _read(
    ours: int, child: subprocess.Popen[str], when: Callable[[str], int | None]
) -> str:
    """Until the terminal is hung up, which is when the program has ended."""
    sent, end = b"", time.monotonic() + 60
    while time.monotonic() < end:
        if not select.select([ours], [], [], 0.2)[0]:
            continue
        try:
            read = os.read(ours, 65536)
        except OSError:  # hung up
            break
        if not read:
            break
        sent += read
        signal = when(sent.decode(errors="replace"))
        if signal is not None and child.poll() is None:
            child.send_signal(signal)
            when = _never
    return sent.decode(errors="replace")


def _never(sent: str) -> None:
    return None


def screen(sent: str) -> list[str]:
    """The lines that stand there in the end: what came after a line was cleared."""
    return [re.split(r"\r(?:\x1b\[K)?", line)[-1].rstrip() for line in _lines(sent)]


def _lines(sent: str) -> list[str]:
    # A terminal sends a carriage return before each line feed, progress one at its end.
    return [line.rstrip("\r") for line in sent.split("\n")]
