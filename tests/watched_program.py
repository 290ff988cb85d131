"""`torchproof check --watch` as a process of its own, on a terminal or without one."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from commands import PROGRAM

PATIENCE_S = 120.0
# A process whose controlling terminal is the descriptor in its first argument.
_ON_TERMINAL = """
import os, sys
os.login_tty(int(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""


def wait_until(holds: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@dataclass
class Watching:
    """The process with what it has written so far; on a terminal, `err` is all."""

    process: subprocess.Popen[bytes]
    streams: dict[int, bytearray]
    terminal: int | None = None
    modes: list[Any] = field(default_factory=list)
    open: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.open = list(self.streams)

    @property
    def out(self) -> str:
        self._read()
        return next(iter(self.streams.values())).decode(errors="replace")

    @property
    def err(self) -> str:
        self._read()
        return list(self.streams.values())[-1].decode(errors="replace")

    def _read(self) -> None:
        while ready := select.select(self.open, [], [], 0)[0]:
            ended = 0
            for number in ready:
                try:
                    read = os.read(number, 65536)
                except OSError:  # the terminal is hung up
                    read = b""
                self.streams[number] += read
                ended += not read
            if ended == len(ready):
                return

    def until(self, count: int, text: str) -> None:
        """Until it has written a text so many times on stderr."""

        def written() -> bool:
            seen = self.err
            assert self.process.poll() is None or seen.count(text) >= count, seen
            return seen.count(text) >= count

        wait_until(written, f"{count} times {text!r} in {self.out} and {self.err}")

    def idle(self, checks: int) -> None:
        """Until so many checks have ended, and it waits for a save."""
        self.until(checks, "; Ctrl-C ends")

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        if self.terminal is None:
            self.process.send_signal(signal.SIGINT)
        else:
            os.write(self.terminal, b"\x03")

        def ended() -> bool:
            self._read()  # a full pipe would stop it
            return self.process.poll() is not None

        wait_until(ended, "no end")
        self._read()
        return self.process.returncode


@contextmanager
def watching(
    folder: Path,
    *arguments: str,
    terminal: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Watching]:
    command = [*PROGRAM, "check", *arguments, "--watch"]
    start = _on_terminal if terminal else _on_pipes
    made = start(command, folder, {**os.environ, **(variables or {})})
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
        made.process.wait()
        while made.open:
            os.close(made.open.pop())


def _on_pipes(command: list[str], folder: Path, env: dict[str, str]) -> Watching:
    ends = [os.pipe(), os.pipe()]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=ends[0][1],
        stderr=ends[1][1],
    )
    for _, write in ends:
        os.close(write)
    return Watching(process, {read: bytearray() for read, _ in ends})


def _on_terminal(command: list[str], folder: Path, env: dict[str, str]) -> Watching:
    ours, theirs = pty.openpty()
    modes = termios.tcgetattr(ours)
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_TERMINAL, str(theirs), *command],
        cwd=folder,
        env={**env, "TERM": "xterm-256color"},
        pass_fds=[theirs],
        start_new_session=True,
    )
    os.close(theirs)
    return Watching(process, {ours: bytearray()}, ours, modes)


def alive(folder: Path) -> list[psutil.Process]:
    """Processes that work in a folder, however they were started."""
    found = []
    for process in psutil.process_iter(["cwd", "status"]):
        dead = process.info["status"] == psutil.STATUS_ZOMBIE
        if process.info["cwd"] == os.path.realpath(folder) and not dead:
            found.append(process)
    return found
