"""One compilation under way: how long it may take, and where its code came from."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from torchproof.records import UserError
from torchproof.runtime import (
    codegen_worker,
    compile_phases,
    interruptible_thread,
    local_compilers,
)
from torchproof.runtime.status_report import Compilation, Fallback
from torchproof.torch_private import remote_codegen


@dataclass
class Job:
    """`until` is a time of `time.monotonic`; `sending` while a child is at work.

    `compiled` names the graphs that were, `failed` counts the others; `missed` says
    that one took too long. What is compiled behind the calls is shelved, and then
    `prepared` for the call that uses it.
    """

    until: float
    ships: bool = True
    started: float = field(default_factory=time.monotonic)
    began_at: float = field(default_factory=time.time)
    shipped: int = 0
    kept: list[str] = field(default_factory=list)
    sending: bool = False
    generalise: bool = False
    compiled: list[str] = field(default_factory=list)
    failed: int = 0
    failure: Fallback | None = None  # the latest of them
    missed: bool = False
    is_left: bool = False  # its caller was called away, by a signal
    is_shelving: bool = False
    behind: bool = False  # a caller that runs eager meanwhile
    ahead: bool = False  # backward graphs are compiled with their forward
    abandoned: bool = False  # to a thread that cannot be ended
    prepared: Job | None = None
    varies: bool = False  # a graph of it has sizes that vary
    earlier_s: float = 0.0  # that preparing it took
    phase: str | None = None  # where it was when its time was over

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def use(self, prepared: Job) -> None:
        """What was compiled before is part of this one."""
        self.prepared, self.earlier_s = prepared, prepared.earlier_s
        self.shipped, self.kept = prepared.shipped, prepared.kept

    def compilation(
        self,
        function: str,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        *,
        cause: str | None = None,
    ) -> Compilation:
        """The record of it, once it has ended well."""
        return Compilation(
            function,
            shapes or {},
            seconds=self.earlier_s + self.seconds,
            cause=cause,
            in_child=self.shipped,
            kept=tuple(self.kept),
        )

    def send(self, payload: bytes) -> bytes:
        self.shipped += 1
        self.sending = True
        try:
            return shared_worker().send(
                payload,
                until=self.until,
                environment=remote_codegen.cache_environment(),
            )
        finally:
            self.sending = False

    def check(self) -> None:
        """Ends it from inside, at a place that is safe, once its time is over."""
        if time.monotonic() >= self.until:
            stack = interruptible_thread.stack_of(threading.get_ident())
            frames = [(f.filename, f.name) for f in stack]
            raise interruptible_thread.GivenUp(compile_phases.phase_of_frames(frames))

    def end_compilers(self, thread_id: int) -> bool:
        """Ends the compilers that this process itself has started for it, if any."""
        return local_compilers.end_all(self.began_at, thread_id)


@functools.cache
def shared_worker() -> codegen_worker.Worker:
    """One child for all models: they compile one after the other anyway."""
    return codegen_worker.Worker(memory_limit_bytes=memory_limit_bytes())


def memory_limit_bytes() -> int | None:
    """What a child may hold, with all it starts, where the environment says so."""
    value = os.environ.get("TORCHPROOF_CHILD_MEMORY_MB")
    if not value:
        return None
    if not re.fullmatch("0*[1-9][0-9]{0,9}", value):
        raise UserError(f"TORCHPROOF_CHILD_MEMORY_MB={value!r}: give a number of MiB")
    return int(value) << 20


_current: contextvars.ContextVar[Job | None] = contextvars.ContextVar(
    "torchproof_job", default=None
)


def current() -> Job | None:
    return _current.get()


@contextlib.contextmanager
def under_way(job: Job) -> Iterator[None]:
    """Code that is generated inside is generated for this job, in the child."""
    token = _current.set(job)
    elsewhere: AbstractContextManager[None] = contextlib.nullcontext()
    if job.ships:
        elsewhere = remote_codegen.codegen_in_child(job.send, job.kept.append)
    try:
        with elsewhere:
            yield
    finally:
        _current.reset(token)
