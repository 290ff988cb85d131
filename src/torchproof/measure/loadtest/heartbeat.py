"""A thread that wakes up often, and notices what keeps threads from running.

The kernel counts how long each thread waited for a CPU. The rest is about the GIL: the
thread asks for it at each beat. If it gets it late, the kernel's statistics of the
thread tell why: a thread that waits for the GIL wakes up at each switch interval to ask
again, and a thread that waits for a CPU does not. Which thread held the GIL shows
afterwards: it has moved on since the last beat, and has not waited for the GIL itself.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
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


class _Thread(NamedTuple):
    """A thread at a beat: where it is, and what the kernel has counted so far."""

    name: str
    position: tuple[int, int]
    running_s: float = 0.0
    waited_s: float = 0.0  # for a CPU, while it was ready to run
    turns: int = 0  # how often it got a CPU

    def turns_while_idle(self, before: _Thread, seconds: float) -> int:
        """How often it may have woken up to ask for the GIL; 0 if it ran instead."""
        idle = self.running_s - before.running_s < seconds / 2
        return self.turns - before.turns if idle else 0


def _look(frames: Mapping[int, FrameType]) -> dict[int, _Thread]:
    threads = {each.ident: each for each in threading.enumerate()}
    seen = {}
    for ident, frame in frames.items():
        position = id(frame), frame.f_lasti
        thread = threads.get(ident)
        if thread is None:  # not started by Python
            seen[ident] = _Thread("?", position)
        else:
            counts = _scheduling(thread.native_id) or (0, 0, 0)
            times = counts[0] / 1e9, counts[1] / 1e9, counts[2]
            seen[ident] = _Thread(thread.name, position, *times)
    return seen


def _scheduling(native_id: int | None) -> tuple[int, int, int] | None:
    """Nanoseconds on a CPU and waiting for one, and turns; None if not counted."""
    try:
        with open(f"/proc/self/task/{native_id}/schedstat", "rb", 0) as file:
            running, waited, turns = map(int, file.read().split())
    except (OSError, ValueError):  # it has ended, or the kernel does not count
        return None
    return running, waited, turns


def why_blind() -> str | None:
    """Why holders of the GIL cannot be seen in this process, or None."""
    if _scheduling(threading.get_native_id()) is not None:
        return None
    return "the kernel does not count how threads are scheduled"


def _is_idle(frame: FrameType) -> bool:
    """Whether a thread waits for a lock, or serves and waits for a request."""
    file = frame.f_code.co_filename
    return file.endswith(_WAITING) or file == _SERVING


class Heartbeat:
    """Watches threads from a thread of its own.

    It calls `held(begin, end, holders)` when the GIL was held: `begin` is when the beat
    was due, so it began up to a period earlier, and `holders` are the names of the
    threads of which one held it, by their idents. `waited(name, seconds)` is called
    for a thread that waited for a CPU, and `poll()` every few beats. An error ends the
    beats, and not the test: `blind` then says why.
    """

    def __init__(
        self,
        held: Callable[[float, float, Mapping[int, str]], None],
        waited: Callable[[str, float], None],
        poll: Callable[[], None] | None = None,
    ) -> None:
        self._held, self._waited, self._poll = held, waited, poll
        self._stopping = threading.Event()
        self._threads: dict[int, _Thread] = {}  # at the last beat
        self.blind = why_blind()
        self._thread = threading.Thread(
            target=self._run, name="torchproof-heartbeat", daemon=True
        )
        self.start = self._thread.start

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        beats = 0
        try:
            while not self._stopping.is_set():
                due = time.perf_counter() + PERIOD_S
                time.sleep(PERIOD_S)
                if not self.blind:
                    self._beat(due, time.perf_counter())
                beats += 1
                if self._poll is not None and beats % _POLL_EVERY == 0:
                    self._poll()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            self.blind = f"watching threads ended early: {why}"

    def _beat(self, due: float, now: float) -> None:
        """Compares all threads with the last beat; keeps no frame of them."""
        frames = frames_of_threads()
        before, self._threads = self._threads, _look(frames)
        own, late_s = threading.get_ident(), now - due
        for ident, thread in self._threads.items():
            known = before.get(ident)
            waited_s = thread.waited_s - known.waited_s if known else 0.0
            if waited_s >= _SHORTEST_CPU_WAIT_S and ident != own:
                self._waited(thread.name, waited_s)
        if late_s >= _SHORTEST_S and own in before:
            turns = self._threads[own].turns_while_idle(before[own], late_s)
            if turns >= 1 + late_s / sys.getswitchinterval() / 2:
                self._held(due, now, self._holders(before, frames, late_s))

    def _holders(
        self,
        before: Mapping[int, _Thread],
        frames: Mapping[int, FrameType],
        late_s: float,
    ) -> dict[int, str]:
        """The threads that ran Python code since the last beat and woke up least often.

        A thread that holds the GIL does not ask for it before it has released it. By
        then it may have ended.
        """
        turns = {}
        for ident, thread in self._threads.items():
            known = before.get(ident)
            stays = known is not None and known.position == thread.position
            if stays or _is_idle(frames[ident]) or ident == threading.get_ident():
                continue
            turns[ident] = thread.turns_while_idle(known, late_s) if known else 0
        least = min(turns.values(), default=0) + _MORE_OFTEN
        ended = {i: t.name for i, t in before.items() if i not in self._threads}
        ran = {i: self._threads[i].name for i, count in turns.items() if count < least}
        return ended | ran
