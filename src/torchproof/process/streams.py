"""Reads what a child reports while it runs: one message after another.

The child writes with `Stream`. The parent calls `follow`, which reads until the child
ends, the timeout expires or the user interrupts. A killed child loses nothing that it
wrote before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from torchproof.process.channel import Channel, Ended, Garbled
from torchproof.process.children import Child, describe, spawn

Entry = dict[str, Any]
_TAIL = 10_000  # bytes of the output in which its last line is


class Stream:
    """The child's end: sends entries to the parent, but not from forked processes."""

    def __init__(self) -> None:
        self._channel = Channel.to_parent()
        self._owner = os.getpid()

    def write(self, kind: str, **values: Any) -> None:
        if os.getpid() != self._owner or not self._channel.is_open():
            return  # a program may close all files that it did not open
        with contextlib.suppress(Ended):  # then this process ends, or soon does
            self._channel.send({"kind": kind, **values})


@dataclass(frozen=True)
class Followed:
    """The entries of a child, and how it ended: finished, timeout or interrupted."""

    entries: list[Entry]
    ending: str = "finished"
    code: int | None = 0
    last_words: str = ""  # the last line of the output of a quiet child
    pid: int | None = None

    def of(self, kind: str) -> list[Entry]:
        return [entry for entry in self.entries if entry["kind"] == kind]

    def last(self, kind: str) -> Entry:
        """The last entry of a kind, without its kind; empty if there is none."""
        entries = self.of(kind)
        return {k: v for k, v in entries[-1].items() if k != "kind"} if entries else {}

    @property
    def crashed(self) -> bool:
        return self.ending == "finished" and (self.code or 0) < 0

    def failure(self, *, script: bool) -> str | None:
        """One line on why a child that ended by itself failed; None if it did not."""
        if self.ending != "finished":
            return None
        if self.code and self.code < 0:
            return f"the target {describe(self.code)}"
        if self.code and script:
            reason = self.last("script_end").get("error")
            if not self.of("script_end"):
                reason = "its end was not observed (os._exit or os.exec, for example)"
            why = f": {reason}" if reason else ""
            return f"the script failed with exit code {self.code}{why}"
        if self.code:
            return f"the child process failed with exit code {self.code}"
        if not self.of("environment"):
            return (
                "the target ended or replaced its process, for example with os._exit or"
                " os.exec, or closed torchproof's files; nothing after that was"
                " observed"
            )
        return None


@dataclass(frozen=True)
class Conditions:
    """The environment variables, timeout and output setting of a child."""

    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    quiet: bool = False


def follow(
    module: str,
    job: str,
    notice: Callable[[Entry, float], None],
    conditions: Conditions,
) -> Followed:
    """Runs `python -m MODULE JOB`; calls `notice(entry, seconds)` for each entry.

    The program's output goes to stderr: stdout carries only the report.
    """
    with tempfile.TemporaryFile() as output:
        seen = _follow(
            ("-m", module, job),
            notice,
            conditions,
            output=output if conditions.quiet else None,
        )
        return dataclasses.replace(seen, last_words=last_line(output))


def _follow(
    command: tuple[str, ...],
    notice: Callable[[Entry, float], None],
    conditions: Conditions,
    *,
    output: IO[bytes] | None,
) -> Followed:
    entries: list[Entry] = []
    ending = "finished"
    started = time.monotonic()
    with spawn(
        *command,
        environment=conditions.environment,
        stdin=None,
        output=output,
    ) as child:
        try:
            for entry in _received(child, conditions.timeout_s or None):
                entries.append(entry)
                notice(entry, time.monotonic() - started)
        except TimeoutError:
            ending = "timeout"
        except KeyboardInterrupt:
            ending = "interrupted"
            with contextlib.suppress(TimeoutError):
                entries.extend(_received(child, 0.0))
    return Followed(entries, ending, child.poll(), pid=child.pid)


def last_line(output: IO[bytes]) -> str:
    """The last line with text: of a process that failed, that of its traceback."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _TAIL))
    lines = output.read().decode("utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _received(child: Child, timeout_s: float | None) -> Iterator[Entry]:
    """The entries of the child until it ends; raises `TimeoutError`."""
    until = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s() -> float | None:
        return None if until is None else max(0.0, until - time.monotonic())

    while True:
        try:
            message = child.receive(left_s())
        except Garbled:
            continue
        except Ended:
            break
        if isinstance(message.get("kind"), str):
            yield message
    child.wait(left_s())  # it may have closed its end long before
