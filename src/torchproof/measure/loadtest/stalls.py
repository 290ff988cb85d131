"""Records what can delay a request in this process, with begin, end and thread.

`StallRecorder` watches the compiler (`compile_stalls.py`), garbage collection, retries
of the CUDA allocator, fallbacks of `torchproof.compile`, threads that hold the GIL, and
waiting for a CPU (`heartbeat.py`). A request costs two writes to a dictionary; the
hooks run only when something happens, and the heartbeat 200 times a second.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Self

from torchproof.measure.loadtest.compile_stalls import CompileWatch, add_guards
from torchproof.measure.loadtest.heartbeat import Heartbeat, Hold, why_blind
from torchproof.measure.loadtest.stall_log import (
    SHORTEST_S,
    OpenStall,
    StallLog,
    place_of_frame,
)
from torchproof.records import Stall, shown


class StallRecorder:
    """A context manager around the serving of requests.

    `missing` has, for each kind of stall that cannot be seen here, why.
    """

    def __init__(self) -> None:
        self._log = StallLog()
        self._compiler = CompileWatch(self._log)
        self._hooks = contextlib.ExitStack()
        self._began = threading.local()
        self._retries: int | None = None
        self._polled = 0.0
        self._missing: dict[str, str] = {}
        self._had_compiler = "torch._dynamo" in sys.modules

    def __enter__(self) -> Self:
        uses_cuda = self._start_polling()
        poll = self._poll if uses_cuda else None
        self._heartbeat = heartbeat = Heartbeat(self._held, self._waited, poll)
        with contextlib.ExitStack() as hooks:
            hooks.enter_context(self._compiler.installed())
            gc.callbacks.append(self._collect)
            hooks.callback(gc.callbacks.remove, self._collect)
            hooks.enter_context(_fallback_lines(self._fell_back))
            heartbeat.start()
            hooks.callback(heartbeat.stop)
            self._hooks = hooks.pop_all()
        if why := why_blind():
            self._missing |= {"gil": why, "cpu": why}
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()
        if (failure := self._heartbeat.failure) is not None:
            why = f"watching threads ended early: {type(failure).__name__}: {failure}"
            self._missing |= {"gil": why, "cpu": why}
        if not self._had_compiler and "torch._dynamo" in sys.modules:
            self._missing["compile"] = "torch.compile was first used under load"

    def begin_request(self, number: int) -> None:
        """This thread begins to serve a request."""
        self._log.begin_request(number)

    def end_request(self, number: int) -> None:
        self._log.end_request()

    @property
    def missing(self) -> Mapping[str, str]:
        return self._compiler.missing | self._missing

    def stalls(self, origin: float) -> tuple[Stall, ...]:
        """The stalls since `origin`; their times count from then.

        Of one that began earlier, the rest counts.
        """
        stalls = [stall for stall in self._log.all() if stall.end > origin]
        add_guards(stalls)
        if self._log.dropped:
            self._missing["gc"] = f"{self._log.dropped} stalls were too many to keep"
        return tuple(_record(each, origin) for each in stalls)

    # -- sources -----------------------------------------------------------------------

    def _collect(self, phase: str, info: Mapping[str, int]) -> None:
        """Called by the garbage collector before and after each collection."""
        if phase == "start":
            self._began.gc = time.perf_counter()
            return
        begin: float | None = getattr(self._began, "gc", None)
        if begin is None or time.perf_counter() - begin < SHORTEST_S:
            return
        stall = self._log.begin(
            "gc", f"garbage collection of generation {info['generation']}"
        )
        stall.begin = begin
        stall.data |= info
        stall.place = place_of_frame(sys._getframe(1))
        self._log.end(stall)

    def _held(self, hold: Hold) -> None:
        """Another thread held the GIL; which one is known if only one ran."""
        stall = OpenStall(
            kind="gil",
            begin=hold.begin,
            end=hold.end,
            thread="",
            request=None,
            text="a thread held the GIL",
        )
        stall.data["threads"] = [each.name for each in hold.holders]
        if len(hold.holders) == 1:
            [holder] = hold.holders
            stall.thread = holder.name
            stall.request = self._log.serving.get(holder.ident)
            stall.place = place_of_frame(holder.frame)
            stall.text = f"thread {stall.thread} held the GIL"
        self._log.keep(stall)

    def _waited(self, ident: int, seconds: float) -> None:
        """A thread waited for a CPU until about now; only requests matter."""
        request = self._log.serving.get(ident)
        if request is None:
            return
        now = time.perf_counter()
        stall = OpenStall(
            kind="cpu",
            begin=now - seconds,
            end=now,
            thread=self._log.names.get(ident, ""),
            request=request,
            text="the serving thread waited for a CPU",
        )
        self._log.keep(stall)

    def _start_polling(self) -> bool:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            return False
        self._retries = _allocator_retries(torch)
        self._polled = time.perf_counter()
        return True

    def _poll(self) -> None:
        """Torch counts the allocator's retries, and has no hook for one."""
        retries = _allocator_retries(sys.modules["torch"])
        now = time.perf_counter()
        if self._retries is not None and retries > self._retries:
            requests = list(self._log.serving.values())
            stall = OpenStall(
                kind="allocator",
                begin=self._polled,
                end=now,
                thread="",
                request=requests[0] if len(requests) == 1 else None,
                text="the CUDA allocator freed its cache and tried again",
                data={"retries": retries - self._retries},
            )
            self._log.keep(stall)
        self._retries, self._polled = retries, now

    def _fell_back(self, line: str) -> None:
        """Adds the reason that `torchproof.compile` logs to the stall it is about."""
        thread = threading.current_thread().name
        request = self._log.serving.get(threading.get_ident())
        for stall in reversed(self._log.stalls):
            if (stall.kind, stall.thread, stall.request) == (
                "fallback",
                thread,
                request,
            ) and "why" not in stall.data:
                stall.data["why"] = line
                stall.text = line
                return
        self._log.keep(self._log.begin("fallback", line))


def _allocator_retries(torch: Any) -> int:
    return int(torch.cuda.memory_stats_as_nested_dict().get("num_alloc_retries", 0))


class _Lines(logging.Handler):
    def __init__(self, receive: Any) -> None:
        super().__init__(logging.WARNING)
        self._receive = receive

    def emit(self, record: logging.LogRecord) -> None:
        self._receive(record.getMessage())


@contextlib.contextmanager
def _fallback_lines(receive: Any) -> Any:
    """Calls `receive(line)` for each warning that `torchproof.compile` logs."""
    log = logging.getLogger("torchproof")
    handler = _Lines(receive)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _record(stall: OpenStall, origin: float) -> Stall:
    place = stall.place
    return Stall(
        kind=stall.kind,
        begin_s=max(0.0, stall.begin - origin),
        end_s=stall.end - origin,
        text=stall.text,
        request=stall.request,
        thread=stall.thread or None,
        file=shown(place.file) if place else None,
        line=place.line if place else None,
        function=place.function if place else None,
        data=stall.data,
    )
