"""Streams JSON lines from a child process to its parent: both ends.

The child flushes each complete line, so a killed process loses nothing. The parent
reads until the child ends, the timeout expires or the user interrupts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from torchproof.process import parent_death

_POLL_S = 0.1

Entry = dict[str, Any]


class Stream:
    """The child's end: writes JSON lines to a file, but not in forked processes."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (open until exit)
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def write(self, kind: str, **values: Any) -> None:
        if os.getpid() == self._owner:
            line = json.dumps({"kind": kind, **values}, default=str)
            with self._lock:
                self._file.write(line + "\n")
                self._file.flush()


@dataclass(frozen=True)
class Followed:
    """The entries of a child, and how it ended: finished, timeout or interrupted."""

    entries: list[Entry]
    ending: str
    code: int | None

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
            return f"the target was killed by {signal.Signals(-self.code).name}"
        if self.code and script:
            reason = self.last("script_end").get("error")
            why = f": {reason}" if reason else ""
            return f"the script failed with exit code {self.code}{why}"
        if self.code:
            return f"the child process failed with exit code {self.code}"
        if not self.of("environment"):
            return "the target ended its process, for example with os._exit"
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
    """Runs `python -m MODULE JOB STREAM`; calls `notice(entry, seconds)` per line."""
    with tempfile.TemporaryDirectory(prefix="torchproof-") as scratch:
        path = Path(scratch) / "stream.jsonl"
        path.touch()
        started = time.monotonic()
        process = _start([sys.executable, "-m", module, job, str(path)], conditions)
        ending = "finished"
        lines = _Lines(path)
        limit_s = conditions.timeout_s
        try:
            while process.poll() is None:
                time.sleep(_POLL_S)
                seconds = time.monotonic() - started
                for entry in lines.read():
                    notice(entry, seconds)
                if limit_s and seconds > limit_s:
                    ending = "timeout"
                    break
        except KeyboardInterrupt:
            ending = "interrupted"
        finally:
            _end(process)
        lines.read()
        lines.close()
    return Followed(lines.entries, ending, process.returncode)


def _start(command: list[str], conditions: Conditions) -> subprocess.Popen[bytes]:
    # The program's output goes to stderr: stdout carries only the report.
    quiet = subprocess.DEVNULL if conditions.quiet else None
    return parent_death.begun(
        lambda: subprocess.Popen(
            command,
            stdout=quiet or sys.stderr,
            stderr=quiet,
            env={**os.environ, **conditions.environment, **parent_death.parent()},
            start_new_session=True,
        )
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a child that still runs, and everything it started."""
    if process.poll() is not None:
        return
    family = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


def _entry(line: str) -> Entry | None:
    """None for a line that is not an entry, as a dying process may write."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_entry = isinstance(entry, dict) and isinstance(entry.get("kind"), str)
    return entry if is_entry else None


class _Lines:
    """Reads the stream while it grows."""

    def __init__(self, path: Path) -> None:
        self._file = path.open(encoding="utf-8", errors="replace")
        self._rest = ""
        self.entries: list[Entry] = []

    def read(self) -> list[Entry]:
        """The entries since the last call."""
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        added = [entry for line in lines if (entry := _entry(line)) is not None]
        self.entries += added
        return added

    def close(self) -> None:
        self._file.close()
