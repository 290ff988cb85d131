"""Shows what is compiling now, for `check --live`.

On a terminal the live table draws it in place. Elsewhere each change is a line, and a
state that lasts is repeated.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from torchproof.records import timeline
from torchproof.report import compile_status

if TYPE_CHECKING:
    from torchproof.cli.live_table import LiveTable

_PERIOD_S = 0.25
_SHORT_S = 1.0  # what takes less is not told
_AGAIN_S = 10.0  # after this time a line is repeated
_MOST = 4  # threads that are shown on a terminal
_STOPPED, _ENDED = {"T", "t"}, {"", "X", "Z"}  # states of a process
_QUIET_NS = 1_500_000_000  # a process writes once in a second, unless it is paused


class CompileDisplay:
    """Reads the timelines of a run while its processes write them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._reader = timeline.TimelineReader(folder, compile_status.LiveProcess)
        self._lock = threading.Lock()
        self._told = LineChooser()

    def statuses(self) -> list[compile_status.Status]:
        with self._lock:
            processes = [each for each in self._reader.update() if _is_child(each.pid)]
            now_ns = time.monotonic_ns()
            for each in processes:
                each.is_stopped = _state(each.pid) in _STOPPED
                quiet = now_ns - each.last_ns > _QUIET_NS
                each.lost = self._why_lost(each.pid) if quiet else None
            return compile_status.statuses(processes, now_ns)

    def _why_lost(self, pid: int) -> str | None:
        """A program that replaces the target has no file open to write its state to."""
        try:
            if _has_open(pid, timeline.file_of(self._folder, pid)):
                return None
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:  # it has ended, or may not be looked at
            return None
        if b"\0torchproof." in command:
            return "the target has closed the files of torchproof"
        return f"the target has replaced itself by {name} (os.exec)"

    def rows(self) -> list[str]:
        """For a terminal; what may be cut comes last."""
        rows = []
        for status in self.statuses()[:_MOST]:
            rows += [status.head, f"   {status.rest}"] if status.rest else [status.head]
        return rows

    @contextlib.contextmanager
    def shown(self, table: LiveTable) -> Iterator[None]:
        table.rows = self.rows
        if table.is_terminal:
            yield
            return
        stop = threading.Event()
        thread = threading.Thread(target=self._tell, args=(table, stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _tell(self, table: LiveTable, stop: threading.Event) -> None:
        while not stop.wait(_PERIOD_S):
            for line in self._told.lines(self.statuses(), time.monotonic()):
                table.say(line)


class LineChooser:
    """Which states become lines: those that last, when they change, and again."""

    def __init__(self) -> None:
        self._told: list[str] = []
        self._compiled = False  # whether the last line told of a compilation
        self._at: float | None = None

    def lines(self, states: list[compile_status.Status], now_s: float) -> list[str]:
        if self._at is None:
            self._at = now_s
        what = [each.what for each in states]
        lasting = any(each.seconds >= _SHORT_S for each in states)
        news = any(each.compiles for each in states) or self._compiled
        changed = what != self._told and lasting and news
        if not states or not (
            (changed and now_s - self._at >= _SHORT_S) or now_s - self._at >= _AGAIN_S
        ):
            return []
        self._told, self._at = what, now_s
        self._compiled = any(each.compiles for each in states)
        return [each.line for each in states]


def _is_child(pid: int) -> bool:
    """Whether it is another process that runs; a zombie has ended."""
    return pid != os.getpid() and _state(pid) not in _ENDED


def _state(pid: int) -> str:
    """The letter that Linux has for the state of a process; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


def _has_open(pid: int, file: Path) -> bool:
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed since
            if os.readlink(entry) == str(file):
                return True
    return False
