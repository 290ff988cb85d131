"""The parent's side of code generation in a child process that can be killed.

`Worker.send` sends a payload to the child and returns its answer, or raises a
`ChildError`. The thread that waits for the answer watches the child's memory. It kills
the child, with everything that it started, at the deadline and whenever the wait ends
early.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from torchproof.process import (
    CpuShare,
    Ended,
    Garbled,
    Message,
    Priority,
    Tick,
    forks,
    packed,
    unpacked,
)
from torchproof.runtime.child import IDLE_EXIT
from torchproof.runtime.child_process import ChildProcess, memory_bytes
from torchproof.runtime.tensors.free_memory import available_bytes

_SLICE_S = 0.1
_CHECK_S = 0.5
_EXIT_PATIENCE_S = 3.0  # a child that has closed its socket ends soon


class ChildError(Exception):
    """The child gave no answer. The next payload gets a new child."""


class ChildHung(ChildError):
    """The child missed the deadline and was killed."""

    def __init__(self, phase: str) -> None:
        super().__init__(f"the compile process missed the deadline in {phase}")
        self.phase = phase


class ChildDied(ChildError):
    """The child ended by itself, or by a signal from elsewhere."""


class ChildFailed(ChildError):
    """Code generation raised an error in the child, which goes on."""


class _EndedIdle(ChildError):
    """The child ended after idle time, before it read the payload."""


class _Starved(ChildError):
    """The child, of idle priority, got hardly any CPU time: others never pause."""


class ChildTooBig(ChildError):
    """The child exceeded its memory limit and was killed."""

    def __init__(self, used_bytes: int, limit_bytes: int) -> None:
        used, limit = used_bytes >> 20, limit_bytes >> 20
        super().__init__(
            f"the compile process used {used} MiB of memory, more than {limit} MiB"
        )
        self.used_bytes = used_bytes


class _Child:
    """One child process, from its start until all its descendants have ended."""

    def __init__(self, memory_limit_bytes: int | None, priority: Priority) -> None:
        try:
            self.process = ChildProcess("generate", priority=priority)
        except OSError as error:
            why = f"the compile process cannot be started: {error}"
            raise ChildDied(why) from None
        self.has_answered = False
        self._priority = priority
        self._limit_bytes = memory_limit_bytes or available_bytes() // 2
        self._share = CpuShare()
        self._checked = time.monotonic()

    @property
    def is_running(self) -> bool:
        return self.process.child.poll() is None

    def kill(self) -> None:
        """Returns when all its processes have ended."""
        self.process.child.kill()
        self.process.close()

    def forget(self) -> None:
        """In a fork, where the process belongs to the parent."""
        self.process.close()

    def phase(self) -> str:
        return self.process.phase() if self.has_answered else "start of the child"

    def ask(self, request: Message, until: float) -> Message:
        """The answer; raises a `ChildError`, and kills the child, if there is none."""

        def tick() -> None:
            if time.monotonic() >= until:
                raise ChildHung(self.phase())
            self._check()

        try:
            return self._exchange(request, tick)
        except (Ended, Garbled):
            error = self._ending()
            self.kill()
            raise error from None
        except BaseException:
            self.kill()
            raise

    def _exchange(self, request: Message, tick: Tick) -> Message:
        child = self.process.child
        if not self.has_answered:
            child.receive(tick=tick)
            self.has_answered = True
        return child.ask(request, tick=tick)

    def _check(self) -> None:
        """A check takes milliseconds on a machine with many processes."""
        if time.monotonic() - self._checked < _CHECK_S:
            return
        members = self.process.members()
        used = memory_bytes(members, limit=self._limit_bytes)
        if used > self._limit_bytes:
            raise ChildTooBig(used, self._limit_bytes)
        if self._priority == "idle" and self._share.is_starved(members):
            raise _Starved
        self._checked = time.monotonic()

    def _ending(self) -> ChildError:
        try:
            code = self.process.child.wait(_EXIT_PATIENCE_S)
        except TimeoutError:
            return ChildDied("the compile process closed its socket")
        if code == IDLE_EXIT:
            return _EndedIdle()
        if code < 0:
            return ChildDied(f"killed by {signal.Signals(-code).name}")
        last_line = self.process.last_line()
        return ChildDied(f"exit code {code}{last_line and ': '}{last_line}")


class Worker:
    """Has one child at a time; starts it when needed, or in `warm`."""

    def __init__(
        self,
        *,
        memory_limit_bytes: int | None = None,
        priority: Priority = "same",
    ) -> None:
        """The limit is by default half of the memory available at a child's start.

        If a child of "idle" priority gets no CPU time, one of "low" priority replaces
        it.
        """
        self._memory_limit_bytes = memory_limit_bytes
        self._priority = priority
        self._lock = threading.Lock()  # of the child's start and end
        self._turn = threading.Lock()  # held by the thread that the child works for
        self._child: _Child | None = None
        self._awaited_by: weakref.WeakSet[Any] = weakref.WeakSet()
        _workers.add(self)

    def forget(self) -> None:
        """In a fork: drops the child, lock and turn, which belong to the parent."""
        if self._child is not None:
            self._child.forget()
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._child = None

    def warm(self, model: object = None) -> None:
        """Starts the child, if none runs; the model may need it."""
        with self._lock, contextlib.suppress(ChildDied):  # `send` reports it
            if self._child is None or not self._child.is_running:
                self._awaited_by.clear()
                self._start()
            if model is not None:
                self._awaited_by.add(model)

    def end_unused(self, model: object) -> None:
        """Ends a child that is still starting, if no other model may need it."""
        with self._lock:
            self._awaited_by.discard(model)
            child = self._child
            is_awaited = self._turn.locked() or self._awaited_by
            if child is None or child.has_answered or is_awaited:
                return
            self._child = None
        child.kill()

    def close(self) -> None:
        """Kills the child and waits until it has ended."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def send(
        self,
        payload: bytes,
        *,
        until: float,
        environment: Mapping[str, str] | None = None,
        kind: Literal["codegen", "graph"] = "codegen",
    ) -> bytes:
        """The child's answer, by `until` of `time.monotonic`; raises a ChildError.

        Anything that ends the wait early kills the child. Several threads may call it:
        one waits for the other.
        """
        variables = dict(environment or {})
        with self._own_turn(until):
            while True:
                request = {
                    "kind": kind,
                    "payload": packed(payload),
                    "environment": variables,
                    "seconds_left": until - time.monotonic(),
                }
                try:
                    answer = self._running_child().ask(request, until)
                    break
                except _EndedIdle:
                    pass  # a new child gets the same payload
                except _Starved:
                    self._priority = "low"
        if "error" in answer:
            raise ChildFailed(answer["error"])
        return unpacked(answer["output"])

    @contextlib.contextmanager
    def _own_turn(self, until: float) -> Iterator[None]:
        turn = self._turn
        left_s = min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX)
        if not turn.acquire(timeout=left_s):
            raise ChildHung("wait for another graph")
        try:
            yield
        finally:
            turn.release()

    def _running_child(self) -> _Child:
        with self._lock:
            if self._child is None or not self._child.is_running:
                self._start()
            assert self._child is not None
            return self._child

    def _start(self) -> None:
        """Starts a child; what an ended one has left is removed."""
        ended, self._child = self._child, None
        if ended is not None:
            ended.kill()
        self._child = _Child(self._memory_limit_bytes, self._priority)


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def close_all() -> None:
    for worker in forks.alive(_workers):
        worker.close()


def _forget_all() -> None:
    for worker in forks.alive(_workers):
        worker.forget()


atexit.register(close_all)
os.register_at_fork(after_in_child=_forget_all)
