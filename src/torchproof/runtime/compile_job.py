"""One running compilation: its deadline, and where its code was generated.

A `Job` holds the state of one compilation. `convert` lets Dynamo trace a frame in the
calling thread; the job's deadline is checked at each traced instruction and at each
operation of a pass. `running(job)` sends code generation to the shared child process,
which is killed at the deadline. Graphs that the child cannot take are compiled here,
and only the passes check their deadline.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import re
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from torchproof.process import forks
from torchproof.records import UserError
from torchproof.runtime import codegen_worker
from torchproof.runtime.status_report import Compilation, Fallback
from torchproof.runtime.tensors import rng_state
from torchproof.torch_private import (
    backends,
    compile_phases,
    frames,
    hidden_gradients,
    remote_codegen,
)


def seconds_until(until: float) -> float:
    """The seconds until a time of `time.monotonic`, in the range `threading` takes."""
    return min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX)


class DeadlinePassed(BaseException):
    """Ends a compilation; `phase` says what it was doing.

    Not an `Exception`: the compiler catches those and would go on.
    """

    def __init__(self, phase: str | None = None) -> None:
        super().__init__()
        self.phase = phase


@dataclass(eq=False)
class Job:
    """The state of one compilation; `until` is its deadline in `time.monotonic`.

    `compiled` names the graphs that compiled, `failed` counts those that did not. A
    background compilation puts its graphs into the graph cache. It then becomes the
    `prepared` job of the call that uses them.
    """

    until: float
    codegen_in_child: bool = True
    started: float = field(default_factory=time.monotonic)
    graphs_in_child: int = 0
    local_reasons: list[str] = field(default_factory=list)  # no child took the graph
    generalise: bool = False
    compiled: list[str] = field(default_factory=list)
    breaks: set[tuple[str, int]] = field(default_factory=set)
    failed: int = 0
    failure: Fallback | None = None  # the latest
    missed_deadline: bool = False  # by one of its graphs
    uses_graph_cache: bool = False
    in_background: bool = False  # the caller runs eager meanwhile
    call: int | None = None  # in the background: the number of the caller's call
    backward_early: bool = False  # backward graphs are compiled with their forward
    checks_types: bool = False  # first, whether eager rejects the types of the call
    prepared: Job | None = None
    varies: bool = False  # one of its graphs has dynamic sizes
    preparation_s: float = 0.0
    symbolic_shapes: object = None  # of its graphs, if they were traced with any
    compiler: Callable[..., Any] | None = None  # of the model's graphs
    ranks: frozenset[int] = frozenset()  # others, in collectives of its graphs

    def __post_init__(self) -> None:
        _all.add(self)

    @staticmethod
    def end_all() -> None:
        """Ends what is being compiled, in the background, when the process ends."""
        for job in forks.alive(_all):
            job.until = 0.0
        codegen_worker.close_all()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def use(self, prepared: Job) -> None:
        """Counts a background compilation as part of this one."""
        self.prepared = prepared
        self.preparation_s = prepared.preparation_s
        self.graphs_in_child = prepared.graphs_in_child
        self.local_reasons = prepared.local_reasons

    def compilation(
        self,
        function: str,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        *,
        cause: str | None = None,
    ) -> Compilation:
        """The record for `status`, once the compilation has succeeded."""
        return Compilation(
            function,
            shapes or {},
            seconds=self.preparation_s + self.seconds,
            cause=cause,
            in_child=self.graphs_in_child,
            kept=tuple(self.local_reasons),
            graphs=len(self.compiled),
        )

    def send(self, payload: bytes) -> bytes:
        self.graphs_in_child += 1
        return worker_of(waits=not self.in_background).send(
            payload,
            until=self.until,
            environment=remote_codegen.cache_environment(),
        )

    def check(self) -> None:
        """Raises `DeadlinePassed` after the deadline; torch calls it at safe places."""
        if time.monotonic() >= self.until:
            frame = traceback.walk_stack(sys._getframe(1))
            places = [
                (each.f_code.co_filename, each.f_code.co_name) for each, _ in frame
            ]
            raise DeadlinePassed(compile_phases.phase_of_frames(places[::-1]))


_all: weakref.WeakSet[Job] = weakref.WeakSet()


def convert(conversion: frames.Conversion, job: Job) -> Any:
    """Dynamo's answer for a frame, or the error that prevented one.

    `DeadlinePassed` also if another thread compiles until then.
    """
    with contextlib.ExitStack() as stack:
        if not stack.enter_context(frames.compile_lock(job.until)):
            raise DeadlinePassed("lock")
        stack.enter_context(frames.compiler_switches(generalise=job.generalise))
        if job.backward_early:
            stack.enter_context(backends.backward_ahead())
        if job.in_background:
            # Callers draw random numbers meanwhile: the RNG must not be set back.
            stack.enter_context(rng_state.restores_suppressed())
        stack.enter_context(hidden_gradients.hidden())
        stack.enter_context(running(job))
        stack.enter_context(frames.breaks_noted(job.breaks.add))
        answer = conversion.run()
        if job.symbolic_shapes is not None:
            frames.release_symbolic_shapes(job.symbolic_shapes)
        return answer


def worker_of(*, waits: bool) -> codegen_worker.Worker:
    """The child for compilations for which a caller waits, or for all others."""
    return shared_worker() if waits else background_worker()


@functools.cache
def shared_worker() -> codegen_worker.Worker:
    """One child for all models: they compile one after the other."""
    return codegen_worker.Worker(memory_limit_bytes=memory_limit_bytes())


@functools.cache
def background_worker() -> codegen_worker.Worker:
    """The child for compilations for which nobody waits.

    It yields the CPUs to the calls that are answered meanwhile. A process cannot raise
    its priority again, so callers that wait need another child.
    """
    return codegen_worker.Worker(
        memory_limit_bytes=memory_limit_bytes(), priority="idle"
    )


def memory_limit_bytes() -> int | None:
    """The memory limit of a child and its descendants, if the environment sets one."""
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
def running(job: Job) -> Iterator[None]:
    """Makes this the current job: checks its deadline, sends its code generation."""
    token = _current.set(job)
    codegen: AbstractContextManager[None] = contextlib.nullcontext()
    if job.codegen_in_child:
        codegen = remote_codegen.codegen_in_child(job.send, job.local_reasons.append)
    try:
        with codegen, frames.checkpoints(job.check):
            yield
    finally:
        _current.reset(token)
