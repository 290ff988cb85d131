"""The parent's side of code generation in a child process that can be killed.

`Worker.send` sends a payload to the child and returns its answer, or raises a
`ChildError`. Each child has a keeper thread that starts it, watches its memory, and
kills it with all its descendants. Callers may be interrupted anywhere; the keeper is
not.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from torchproof.process import (
    CpuShare,
    Ended,
    Garbled,
    Message,
    Priority,
    Tick,
    packed,
    unpacked,
)
from torchproof.runtime.child import IDLE_EXIT
from torchproof.runtime.child_process import ChildProcess, memory_bytes
from torchproof.runtime.tensors.free_memory import available_bytes

_SLICE_S = 0.1
_CHECK_S = 0.5
_END_PATIENCE_S = 3.0
# After the deadline: the keeper ends the child, and the caller waits for its answer.
_HUNG_PATIENCE_S = 0.4
_KEEPER = "torchproof-child"


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
        self.gone = threading.Event()  # with all its descendants
        self.is_busy = False
        self.error: ChildError | None = None  # set before `gone`
        self._is_ready = False
        self._must_end = threading.Event()
        self._limit_bytes = memory_limit_bytes
        self._priority = priority
        self._process: ChildProcess | None = None
        keeper = threading.Thread(target=self._keep, name=_KEEPER, daemon=True)
        try:
            keeper.start()
        except RuntimeError as error:  # the system allows no further thread
            self.error = ChildDied(f"the compile process cannot be started: {error}")
            self.gone.set()

    def _keep(self) -> None:
        try:
            self._process = process = ChildProcess("generate", priority=self._priority)
            with process.child:
                self.error = self._watch(process)
            code = process.child.wait()
            self.error = self.error or _exit_error(code, process.last_line())
        except OSError as error:
            self.error = ChildDied(f"the compile process cannot be started: {error}")
        finally:
            self.gone.set()

    def _watch(self, process: ChildProcess) -> ChildError | None:
        """Waits until the child has ended or must end; the reason if we decide it."""
        checked = time.monotonic()
        limit = self._limit_bytes
        if limit is None:
            limit = available_bytes() // 2
        share = CpuShare()
        while process.child.poll() is None and not self._must_end.wait(_SLICE_S):
            # A check takes milliseconds on a machine with many processes.
            if not self.is_busy or time.monotonic() - checked < _CHECK_S:
                continue
            members = process.members()
            used = memory_bytes(members, limit=limit)
            if used > limit:
                return ChildTooBig(used, limit)
            if self._priority == "idle" and share.is_starved(members):
                return _Starved()
            checked = time.monotonic()
        return None

    def kill(self) -> None:
        """Returns at once; `gone` is set when all processes have ended."""
        self._must_end.set()

    def forget(self) -> None:
        """In a fork, where the process belongs to the parent."""
        if self._process is not None:
            self._process.close()

    @property
    def is_usable(self) -> bool:
        # Its caller was interrupted if it is busy: its answer would be stale.
        return not (self.is_busy or self._must_end.is_set() or self.gone.is_set())

    @property
    def has_answered(self) -> bool:
        return self._is_ready

    def phase(self) -> str:
        if not self._is_ready or self._process is None:
            return "start of the child"
        return self._process.phase()

    def ask(self, request: Message, tick: Tick) -> Message:
        while self._process is None:
            tick()
            if self.gone.wait(_SLICE_S / 10):
                raise Ended
        if not self._is_ready:
            self._process.child.receive(tick=tick)
            self._is_ready = True
        return self._process.child.ask(request, tick=tick)


def _exit_error(code: int, last_line: str) -> ChildError:
    if code == IDLE_EXIT:
        return _EndedIdle()
    if code < 0:
        return ChildDied(f"killed by {signal.Signals(-code).name}")
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
        self._lock = threading.Lock()
        self._turn: threading.Thread | None = None
        self._child: _Child | None = None
        self._awaited_by: weakref.WeakSet[Any] = weakref.WeakSet()
        _workers.add(self)

    def forget(self) -> None:
        """In a fork: drops the child, lock and turn, which belong to the parent."""
        if self._child is not None:
            self._child.forget()
        self._lock = threading.Lock()
        self._turn = None
        self._child = None

    def warm(self, model: object = None) -> None:
        """Starts the child in the background, if none runs; the model may need it."""
        with self._lock:
            if self._child is None or self._child.gone.is_set():
                self._child = self._new_child()
                self._awaited_by.clear()
            if model is not None:
                self._awaited_by.add(model)

    def end_unused(self, model: object) -> None:
        """Ends a child that is still starting, if no other model may need it."""
        with self._lock:
            self._awaited_by.discard(model)
            child = self._child
            is_awaited = self._turn is not None or self._awaited_by
            if child is None or child.has_answered or is_awaited:
                return
            self._child = None
        child.kill()
        child.gone.wait(_END_PATIENCE_S)

    def close(self) -> None:
        """Kills the child and waits until it has ended."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.gone.wait(_END_PATIENCE_S)

    def send(
        self,
        payload: bytes,
        *,
        until: float,
        environment: Mapping[str, str] | None = None,
        kind: Literal["codegen", "graph"] = "codegen",
    ) -> bytes:
        """The child's answer, by `until` of `time.monotonic`; raises a ChildError.

        Anything that ends the wait early kills the child, including an exception set
        from another thread. Several threads may call it: one waits for the other.
        """
        variables = dict(environment or {})
        with self._own_turn(until):
            while True:
                child = self._usable_child()
                request = {
                    "kind": kind,
                    "payload": packed(payload),
                    "environment": variables,
                    "seconds_left": until - time.monotonic(),
                }
                try:
                    answer = _exchange(child, request, until)
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
        me = threading.current_thread()
        try:
            while not self._take_turn(me):
                _check(until, lambda: "wait for another graph")
                time.sleep(_SLICE_S / 2)
            yield
        finally:
            with self._lock:
                if self._turn is me:
                    self._turn = None

    def _take_turn(self, me: threading.Thread) -> bool:
        with self._lock:
            # An interrupted thread may have ended without returning its turn.
            if self._turn is None or not self._turn.is_alive():
                self._turn = me
            return self._turn is me

    def _usable_child(self) -> _Child:
        with self._lock:
            if self._child is not None and not self._child.is_usable:
                self._child.kill()
                self._child = None
            if self._child is None:
                self._child = self._new_child()
            return self._child

    def _new_child(self) -> _Child:
        return _Child(self._memory_limit_bytes, self._priority)


def _exchange(child: _Child, request: Message, until: float) -> Message:
    child.is_busy = True
    try:
        answer = child.ask(request, lambda: _check(until, child.phase))
    except (Ended, Garbled):
        child.kill()
        child.gone.wait(_END_PATIENCE_S)
        raise child.error or ChildDied(
            "the compile process closed its socket"
        ) from None
    except ChildHung:
        child.kill()
        child.gone.wait(_HUNG_PATIENCE_S)
        raise
    except BaseException:
        child.kill()
        raise
    child.is_busy = False
    return answer


def _check(until: float, phase: Callable[[], str]) -> None:
    if time.monotonic() >= until:
        raise ChildHung(phase())


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _close_all() -> None:
    for worker in list(_workers):
        worker.close()


def _forget_all() -> None:
    for worker in list(_workers):
        worker.forget()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
