"""The stalls of this process so far, and which request each thread is serving."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

from torchproof.records import StallKind, plain_name, whose

SHORTEST_S = 0.0005  # what is shorter does not matter to a request
_MOST = 100_000  # stalls, so that the log itself takes little memory


class CodePlace(NamedTuple):
    """A line of Python code."""

    file: str
    line: int
    function: str


@dataclass
class OpenStall:
    """Something that has begun; `end` is its begin until it ends."""

    kind: StallKind
    begin: float
    end: float
    thread: str
    request: int | None
    text: str = ""
    place: CodePlace | None = None
    data: dict[str, Any] = field(default_factory=dict)
    waiting: OpenStall | None = None  # of the thread that waits for this one
    has_ended: bool = False


class StallLog:
    """Collects stalls; every method may be called from any thread."""

    def __init__(self) -> None:
        self.serving: dict[int, int] = {}  # the request of each thread, by its ident
        self.names: dict[int, str] = {}  # of threads that have served a request
        self.stalls: list[OpenStall] = []
        self.dropped = 0
        self._unfinished: dict[int, OpenStall] = {}
        self._local = threading.local()

    def begin(self, kind: StallKind, text: str = "") -> OpenStall:
        """Begins a stall of this thread, or of the thread that waits for it."""
        now = time.perf_counter()
        waiting: OpenStall | None = getattr(self._local, "waiting", None)
        thread = threading.current_thread().name
        ident = threading.get_ident()
        request = self.serving.get(ident)
        data: dict[str, Any] = {}
        if waiting is not None:
            data["helper"] = thread
            thread, request = waiting.thread, waiting.request
        elif ident not in self.names:
            data["background"] = True
        return OpenStall(
            kind=kind,
            begin=now,
            end=now,
            thread=thread,
            request=request,
            text=text,
            data=data,
            waiting=waiting,
        )

    def begin_request(self, number: int) -> None:
        ident = threading.get_ident()
        self.serving[ident] = number
        if ident not in self.names:
            self.names[ident] = threading.current_thread().name

    def end_request(self) -> None:
        self.serving.pop(threading.get_ident(), None)

    def end(self, stall: OpenStall) -> None:
        """Ends a stall and keeps it, unless it was too short to matter."""
        self._unfinished.pop(id(stall), None)
        _disown(stall)
        stall.end = time.perf_counter()
        stall.has_ended = True
        if stall.end - stall.begin >= SHORTEST_S:
            self.keep(stall)

    def may_outlast(self, stall: OpenStall) -> None:
        """Keeps a stall even if it does not end before the requests do."""
        self._unfinished[id(stall)] = stall

    def all(self) -> list[OpenStall]:
        """What has ended, and what has lasted until now."""
        now = time.perf_counter()
        unfinished = list(self._unfinished.values())
        for stall in unfinished:
            stall.end = now
            _disown(stall)
        return sorted(
            [*self.stalls, *unfinished], key=lambda each: (each.begin, -each.end)
        )

    def keep(self, stall: OpenStall) -> None:
        if len(self.stalls) < _MOST:
            self.stalls.append(stall)
        else:
            self.dropped += 1

    @contextlib.contextmanager
    def on_behalf_of(self, waiting: OpenStall | None) -> Iterator[None]:
        """What begins in this thread delays the thread of `waiting`, which waits."""
        before = getattr(self._local, "waiting", None)
        self._local.waiting = waiting
        try:
            yield
        finally:
            self._local.waiting = before


def _disown(stall: OpenStall) -> None:
    """Separates a stall from a thread that did not wait for it, but went on."""
    if stall.waiting is not None and stall.waiting.has_ended and "helper" in stall.data:
        stall.thread, stall.request = stall.data.pop("helper"), None
        stall.data["background"] = True


def place_of_frame(frame: FrameType | None) -> CodePlace | None:
    """The innermost line outside of torch, torchproof and the standard library."""
    while frame is not None:
        code = frame.f_code
        if whose(code.co_filename) in {"user", "library"}:
            name = plain_name(code.co_qualname)
            return CodePlace(code.co_filename, frame.f_lineno or 0, name)
        frame = frame.f_back
    return None
