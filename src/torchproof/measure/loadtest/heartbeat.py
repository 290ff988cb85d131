"""A thread that wakes up often, and notices what keeps threads from running.

The kernel counts how long each thread waited for a CPU. The rest is about the GIL: the
thread asks for it at each beat. If it gets it late, the kernel's statistics of the
thread tell why: a thread that waits for the GIL wakes up at each switch interval to ask
again, and a thread that waits for a CPU does not. Which thread held the GIL shows
afterwards: it has moved on since the last beat, and has not waited for the GIL itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, KeysView, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple

from torchproof.process import frames_of_threads

PERIOD_S = 0.005
_SHORTEST_S = 0.010  # of what counts as holding the GIL: two switch intervals
_SHORTEST_CPU_WAIT_S = 0.001
_POLL_EVERY = 4  # beats
_MORE_OFTEN = 3  # turns on a CPU by which waiting threads differ from the holder
# Threads that wait in these files wait for each other, without the GIL.
_WAITING = ("threading.py", "queue.py", "selectors.py", "socket.py")
_SERVING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "serving.py")


class Holder(NamedTuple):
    """A thread that may have held the GIL; `frame` is where it is shortly afterwards.

    The frame is None if the thread has ended since.
    """

    name: str
    ident: int
    frame: FrameType | None


@dataclass(frozen=True)
class Hold:
    """The GIL was held from `begin` to `end`.

    `begin` is when the beat was due, so it began up to a period earlier. `holders` are
    the threads of which one held it.
    """

    begin: float
    end: float
    holders: Sequence[Holder]


class _Scheduling(NamedTuple):
    """What the kernel has counted for a thread since its start."""

    running_s: float
    waited_s: float  # for a CPU, while it was ready to run
    turns: int  # how often it got a CPU


class _Threads:
    """The position and the scheduling of each Python thread at the last beat."""

    def __init__(self) -> None:
        self._own = threading.get_ident()
        self._files: dict[int, int] = {}  # open files, by the thread's ident
        self._known: KeysView[int] | set[int] = set()
        self._names: dict[int | None, str] = {}
        self._positions: dict[int, tuple[int, int]] = {}
        self._scheduling: dict[int, _Scheduling] = {}

    def note(self) -> Iterator[tuple[int, float]]:
        """Notes all threads; yields those that waited for a CPU, and how long."""
        frames = frames_of_threads()
        if frames.keys() != self._known:
            self._open(frames)
        self._positions = {ident: _position(each) for ident, each in frames.items()}
        before = self._scheduling
        self._scheduling = {ident: self._read(ident) for ident in self._files}
        for ident, now in self._scheduling.items():
            if ident in before and ident != self._own:
                waited_s = now.waited_s - before[ident].waited_s
                if waited_s >= _SHORTEST_CPU_WAIT_S:
                    yield ident, waited_s

    def is_waiting(self, late_s: float) -> bool:
        """Whether this thread asked for the GIL at each switch interval."""
        turns, idle = self._since(self._own, late_s)
        return idle and turns >= 1 + late_s / sys.getswitchinterval() / 2

    def holders(self, late_s: float) -> list[Holder]:
        """The threads that ran Python code since the last beat and asked least often.

        A thread that holds the GIL does not ask for it before it has released it. By
        then it may have ended.
        """
        frames = frames_of_threads()
        ran = {
            ident: frame
            for ident, frame in frames.items()
            if ident != self._own
            and self._positions.get(ident) != _position(frame)
            and not _is_idle(frame)
        }
        turns = {ident: self._turns_while_idle(ident, late_s) for ident in ran}
        least = min(turns.values(), default=0)
        ended = self._positions.keys() - frames.keys()
        return [
            *(Holder(self._names.get(ident, "?"), ident, None) for ident in ended),
            *(
                Holder(self._names.get(ident, "?"), ident, frame)
                for ident, frame in ran.items()
                if turns[ident] < least + _MORE_OFTEN
            ),
        ]

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _turns_while_idle(self, ident: int, late_s: float) -> int:
        """How often a thread may have woken up to ask for the GIL."""
        turns, idle = self._since(ident, late_s)
        return turns if idle else 0

    def _since(self, ident: int, late_s: float) -> tuple[int, bool]:
        """How often a thread got a CPU since the last beat, and whether it was idle."""
        before, now = self._scheduling.get(ident), self._read(ident)
        if before is None:
            return 0, False
        idle = now.running_s - before.running_s < late_s / 2
        return now.turns - before.turns, idle

    def _open(self, frames: dict[int, FrameType]) -> None:
        native = {each.ident: each.native_id for each in threading.enumerate()}
        self._names = {each.ident: each.name for each in threading.enumerate()}
        self._known = frames.keys()
        for ident in self._files.keys() - frames.keys():
            os.close(self._files.pop(ident))
        for ident in frames.keys() - self._files.keys():
            if native.get(ident) is not None:
                with contextlib.suppress(OSError):  # it has just ended
                    self._files[ident] = os.open(_path(native[ident]), os.O_RDONLY)

    def _read(self, ident: int) -> _Scheduling:
        try:
            counts = os.pread(self._files[ident], 64, 0).split()
            running, waited, turns = map(int, counts)
        except (KeyError, OSError, ValueError):  # it has ended, or is not known yet
            return _Scheduling(0.0, 0.0, 0)
        return _Scheduling(running / 1e9, waited / 1e9, turns)


def _path(native_id: int | None) -> str:
    return f"/proc/self/task/{native_id}/schedstat"


def _position(frame: FrameType) -> tuple[int, int]:
    return id(frame), frame.f_lasti


def _is_idle(frame: FrameType) -> bool:
    """Whether a thread waits for a lock, or serves and waits for a request."""
    file = frame.f_code.co_filename
    return file.endswith(_WAITING) or file == _SERVING


def why_blind() -> str | None:
    """Why holders of the GIL cannot be seen in this process, or None."""
    try:
        with open(_path(threading.get_native_id()), "rb") as file:
            counted = len(file.read().split()) == 3
    except OSError:
        counted = False
    return None if counted else "the kernel does not count how threads are scheduled"


class Heartbeat:
    """Calls `held(hold)` when the GIL was held, and `poll()` every few beats.

    `waited(ident, seconds)` is called for a thread that waited for a CPU. An error ends
    the beats, and not the test: `failure` has it.
    """

    def __init__(
        self,
        held: Callable[[Hold], None],
        waited: Callable[[int, float], None],
        poll: Callable[[], None] | None = None,
    ) -> None:
        self._held = held
        self._waited = waited
        self._poll = poll
        self._sees_holders = why_blind() is None
        self._running = True
        self.failure: Exception | None = None
        self._thread = threading.Thread(
            target=self._run, name="torchproof-heartbeat", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._running = False
        self._thread.join()

    def _run(self) -> None:
        try:
            self._beat()
        except Exception as error:
            self.failure = error

    def _beat(self) -> None:
        threads = _Threads()
        beats = 0
        while self._running:
            if self._sees_holders:
                for ident, seconds in threads.note():
                    self._waited(ident, seconds)
            due = time.perf_counter() + PERIOD_S
            time.sleep(PERIOD_S)
            now = time.perf_counter()
            late_s = now - due
            is_late = self._sees_holders and late_s >= _SHORTEST_S
            if is_late and threads.is_waiting(late_s):
                self._held(Hold(due, now, threads.holders(late_s)))
            beats += 1
            if self._poll is not None and beats % _POLL_EVERY == 0:
                self._poll()
        threads.close()
