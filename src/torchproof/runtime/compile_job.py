"""One running compilation: its deadline, and where its code was generated.

A `Job` holds the state of one compilation. `running(job)` sends code generation to the
shared child process. `Job.end_compilers` kills the compilers that this process started
for graphs that the child cannot take.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchproof.process import boot_time, children_since, kill_tree
from torchproof.records import UserError
from torchproof.runtime import codegen_worker, interruptible_thread
from torchproof.runtime.status_report import Compilation, Fallback
from torchproof.torch_private import backends, compile_phases, configs, remote_codegen


@dataclass
class Job:
    """The state of one compilation; `until` is its deadline in `time.monotonic`.

    `compiled` names the graphs that compiled, `failed` counts those that did not. A
    background compilation puts its graphs into the graph cache. It then becomes the
    `prepared` job of the call that uses them.
    """

    until: float
    codegen_in_child: bool = True
    started: float = field(default_factory=time.monotonic)
    started_at: float = field(default_factory=boot_time)
    graphs_in_child: int = 0
    local_reasons: list[str] = field(default_factory=list)  # no child took the graph
    is_sending: bool = False  # a child is generating code
    generalise: bool = False
    compiled: list[str] = field(default_factory=list)
    breaks: set[tuple[str, int]] = field(default_factory=set)
    failed: int = 0
    failure: Fallback | None = None  # the latest
    missed_deadline: bool = False  # by one of its graphs
    caller_left: bool = False  # a signal handler of the caller raised
    uses_graph_cache: bool = False
    in_background: bool = False  # the caller runs eager meanwhile
    call: int | None = None  # in the background: the number of the caller's call
    backward_early: bool = False  # backward graphs are compiled with their forward
    checks_types: bool = False  # first, whether eager rejects the types of the call
    abandoned: bool = False  # its thread cannot be interrupted
    prepared: Job | None = None
    varies: bool = False  # one of its graphs has dynamic sizes
    preparation_s: float = 0.0
    phase: str | None = None  # at the deadline
    phase_in_child: str | None = None  # at the deadline, if a child missed it
    symbolic_shapes: object = None  # of its graphs, if they were traced with any
    compiler: Callable[..., Any] | None = None  # of the model's graphs

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
        self.is_sending = True
        try:
            return worker_of(waits=not self.in_background).send(
                payload,
                until=self.until,
                environment=remote_codegen.cache_environment(),
            )
        except codegen_worker.ChildHung as error:
            self.phase_in_child = error.phase
            raise
        finally:
            self.is_sending = False

    def check(self) -> None:
        """Raises `Interrupted` after the deadline; torch calls it at safe places."""
        if time.monotonic() >= self.until:
            stack = interruptible_thread.stack_of(threading.get_ident())
            raise interruptible_thread.Interrupted(compile_phases.phase_of_stack(stack))

    def has_compilers(self, thread_id: int) -> bool:
        """Whether a compiler runs that this process started for the job."""
        return bool(_compilers(self.started_at, thread_id))

    def end_compilers(self, thread_id: int) -> None:
        """Kills the compilers that this process started for the job."""
        for compiler in _compilers(self.started_at, thread_id):
            kill_tree(compiler)

    def abandon_pool(self) -> None:
        """Gives up Inductor's compile pool, and kills compilers that it still starts.

        Its threads cannot be interrupted, and may be about to start a compiler.
        """
        if "torch._inductor.async_compile" not in sys.modules:
            return
        threads = [each for each in backends.abandon_pool() if each.is_alive()]
        if threads:
            name = "torchproof-end-compilers"
            end = functools.partial(_kill_compilers_of, threads)
            threading.Thread(target=end, name=name, daemon=True).start()


@contextlib.contextmanager
def interrupted_at_deadline(job: Job) -> Iterator[None]:
    """Interrupts this thread at the deadline, and kills the compilers it started.

    For work that only this thread can do. `Interrupted` has the phase.
    """

    def end(thread_id: int) -> bool:
        stack = interruptible_thread.stack_of(thread_id)
        job.phase = compile_phases.phase_of_stack(stack)
        job.end_compilers(thread_id)
        return True

    try:
        with interruptible_thread.interrupt_after(job.until, end):
            yield
    except interruptible_thread.Interrupted as error:
        error.phase = job.phase
        raise


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


# A thread of Inductor's pool that was given up starts at most a few compilers.
_POOL_PATIENCE_S = 60.0
_LOOK_EVERY_S = 0.1

_current: contextvars.ContextVar[Job | None] = contextvars.ContextVar(
    "torchproof_job", default=None
)


def current() -> Job | None:
    return _current.get()


@contextlib.contextmanager
def running(job: Job) -> Iterator[None]:
    """Makes this the current job and sends its code generation to the child."""
    token = _current.set(job)
    codegen: AbstractContextManager[None] = contextlib.nullcontext()
    if job.codegen_in_child:
        codegen = remote_codegen.codegen_in_child(job.send, job.local_reasons.append)
    try:
        with codegen, configs.own_changes():
            yield
    finally:
        _current.reset(token)


# -- compilers that this process started -----------------------------------------------


def _compilers(since: float, thread_id: int) -> list[int]:
    """The compilers started after `since` (of `boot_time`).

    A child process is a compiler if the compiling thread or one of Inductor's own
    threads started it, or if it works on a file in Inductor's cache. Other children,
    such as data loaders, are left alone.
    """
    if "torch._inductor" not in sys.modules:
        return []  # Inductor has started nothing; do not load it here
    cache = backends.cache_folder()
    compiling = {thread_id, *backends.pool_threads()}
    started_there = set().union(*map(_children_of_thread, compiling))
    return [
        child
        for child in children_since(since)
        if child in started_there or _works_in(child, cache)
    ]


def _kill_compilers_of(threads: Iterable[threading.Thread]) -> None:
    """Kills every process that the threads start, until they have ended."""
    until = time.monotonic() + _POOL_PATIENCE_S
    while time.monotonic() < until and any(each.is_alive() for each in threads):
        for thread in threads:
            for child in _children_of_thread(thread.ident or 0):
                kill_tree(child)
        time.sleep(_LOOK_EVERY_S)


def _children_of_thread(thread_id: int) -> set[int]:
    """The children that one thread started; empty if the kernel does not list them."""
    native = {thread.ident: thread.native_id for thread in threading.enumerate()}
    path = Path(f"/proc/self/task/{native.get(thread_id)}/children")
    try:
        return set(map(int, path.read_text().split()))
    except OSError:
        return set()


def _works_in(pid: int, folder: str) -> bool:
    prefix = os.path.join(folder, "").encode()
    try:
        return prefix in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False  # it has ended
