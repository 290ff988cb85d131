"""Shows what child processes print above a live table, which they would overwrite.

Meanwhile stderr is a terminal of our own, which children inherit. What comes out of it
goes to the real one line by line; the table shows lines that may still change, such as
progress bars. Of the terminal's commands only colours reach the real one.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import re
import select
import sys
import termios
import threading
import tty
from collections import deque
from collections.abc import Callable, Iterator
from typing import TextIO

_STDERR = 2
_PERIOD_S = 0.1
_CHUNK_BYTES = 1 << 16
_LONGEST = 1 << 16  # letters of a line; a longer one is split
_MOST_REDRAWN = 20  # lines that a program may redraw
# What a program writes: letters, a sign that moves, a command of the terminal.
_TOKENS = re.compile(
    r"\x1b\[(?P<number>[0-?]*)[ -/]*(?P<command>[@-~])"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
    r"|[^\x00-\x08\x0a-\x1f\x7f]+|[\x00-\x1f\x7f]"
)
_CUT = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[ -/]*)\Z")
# Text that a carriage return and other text follow: most of a progress bar.
_REPLACED = re.compile(r"\r[^\x00-\x1f]+(?=\r[^\x00-\x1f])")


def opened_again(stream: TextIO) -> TextIO:
    """Another file for the same terminal, whatever becomes of the first."""
    number = os.dup(stream.fileno())
    return open(number, "w", encoding=stream.encoding, errors="backslashreplace")


class ScreenLines:
    """The lines of a program on a terminal, and which of them it may draw again.

    Text after a carriage return replaces its line. A program that has moved up by n
    lines is taken to redraw its last n lines, so they are not complete.
    """

    def __init__(self) -> None:
        self._lines = [""]
        self._at = 0  # the line of the cursor
        self._return: str | None = None  # colours since a carriage return
        self._redrawn = 0  # lines that the program goes back to
        self._left: deque[str] = deque(maxlen=_MOST_REDRAWN)  # complete lines
        self._cut = ""  # the beginning of a command
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def unfinished(self) -> list[str]:
        return [line for line in self._lines if line.strip()]

    def feed(self, read: bytes) -> list[str]:
        """Takes output; returns the lines that are complete since."""
        text = self._cut + self._decoder.decode(read)
        self._cut = ""
        if (cut := _CUT.search(text)) and len(text) - cut.start() < _LONGEST:
            text, self._cut = text[: cut.start()], text[cut.start() :]
        for token in _TOKENS.finditer(_REPLACED.sub("", text)):
            self._take(token)
        count = max(0, self._at - self._redrawn)
        complete, self._lines = self._lines[:count], self._lines[count:]
        self._at -= count
        self._left.extend(complete)
        return complete

    def _take(self, token: re.Match[str]) -> None:
        text = token[0]
        if token["command"] is not None:
            self._command(text, token["command"], token["number"])
        elif text == "\n":
            self._move(1)
            self._return = ""
        elif text == "\r":
            self._return = ""
        elif text == "\b":
            self._lines[self._at] = self._lines[self._at][:-1]
        elif text[0] == "\t" or text[0] >= " ":
            self._add(text)

    def _add(self, text: str) -> None:
        if self._return is not None:
            self._lines[self._at], self._return = self._return, None
        self._lines[self._at] += text
        if len(self._lines[self._at]) > _LONGEST:
            self._move(1)

    def _command(self, text: str, command: str, number: str) -> None:
        count = int(number) if number.isdigit() else 1
        if command == "m" and self._return is not None:
            self._return += text
        elif command == "m":
            self._lines[self._at] += text
        elif command in "AF":
            self._move(-min(count, _MOST_REDRAWN))
        elif command in "BE":
            self._move(min(count, _MOST_REDRAWN))
        elif command == "K" and (number == "2" or self._return is not None):
            self._lines[self._at] = ""
        elif command == "J":
            del self._lines[self._at + 1 :]

    def _move(self, count: int) -> None:
        if count < 0:
            self._redrawn = max(self._redrawn, -count)
        self._at += count
        while self._at < 0:
            self._lines.insert(0, self._left.pop() if self._left else "")
            self._at += 1
        while self._at >= len(self._lines):
            self._lines.append("")


class OutputRelay:
    """`unfinished` are the last lines of what was printed, while they may change."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write  # complete lines
        self._lines = ScreenLines()
        self._stop = threading.Event()

    @property
    def unfinished(self) -> list[str]:
        return self._lines.unfinished

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
            self._write_lines(self._lines.feed(read))
        rest, self._lines = self._lines.unfinished, ScreenLines()
        self._write_lines(rest)

    def _write_lines(self, lines: list[str]) -> None:
        if lines:
            with contextlib.suppress(OSError):  # the terminal was closed
                self._write("\n".join(lines))
