"""Shows what child processes print above a live table, which they would overwrite.

Meanwhile stderr is a terminal of our own, which children inherit. What comes out of it
goes to the real one line by line; the table shows a line that has not ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from typing import TextIO

_STDERR = 2
_PERIOD_S = 0.1
_CHUNK_BYTES = 1 << 16


def opened_again(stream: TextIO) -> TextIO:
    """Another file for the same terminal, whatever becomes of the first."""
    number = os.dup(stream.fileno())
    return open(number, "w", encoding=stream.encoding, errors="backslashreplace")


class OutputRelay:
    """`unfinished` is the last line of what was printed, until it ends."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write  # complete lines
        self._rest = b""
        self._stop = threading.Event()

    @property
    def unfinished(self) -> str:
        """As a terminal shows it: a progress bar returns to the first column."""
        text = self._rest.decode("utf-8", "replace").rstrip("\r")
        return text.rpartition("\r")[2]

    @contextlib.contextmanager
    def relayed(self) -> Iterator[None]:
        """Relays what is written to stderr; all of it when the context ends."""
        real = os.dup(_STDERR)
        ours, theirs = pty.openpty()
        tty.setraw(theirs)  # a line ends as the program writes it
        size = fcntl.ioctl(real, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
        sys.stderr.flush()
        os.dup2(theirs, _STDERR)
        os.close(theirs)
        thread = threading.Thread(target=self._relay, args=(ours,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(real, _STDERR)
            os.close(real)
            self._stop.set()
            thread.join()
            os.close(ours)

    def _relay(self, ours: int) -> None:
        while True:
            ready = select.select([ours], [], [], _PERIOD_S)[0]
            if not ready and self._stop.is_set():
                break
            try:
                read = os.read(ours, _CHUNK_BYTES) if ready else b""
            except OSError:  # nobody has it open any more
                break
            lines, end, self._rest = (self._rest + read).rpartition(b"\n")
            if end:
                self._write(lines.decode("utf-8", "replace"))
        if self._rest:
            text, self._rest = self.unfinished, b""
            self._write(text)
