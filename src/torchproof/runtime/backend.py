"""The backend for `torch.compile`: compiles graphs, and runs failed ones uncompiled.

Takes an FX graph and its example inputs, returns a callable. A graph that fails in
AOTAutograd, in Inductor or in its first run runs as uncompiled FX, with eager's answers
and gradients. Only this graph loses its speed.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

from torchproof.runtime import (
    codegen_worker,
    compile_job,
    compile_phases,
    first_runs,
    graph_cache,
    interruptible_thread,
)
from torchproof.runtime.status_report import Compilation, Fallback
from torchproof.torch_private import backends, subgraphs


class Owner(Protocol):
    """Receives what the backend compiled, and what it runs eager."""

    @property
    def deadline_s(self) -> float: ...
    def graph_compiled(self, item: Compilation) -> None: ...
    def graph_failed(self, item: Fallback) -> None: ...
    def graph_ran(self, name: str, failure: Fallback | None = None) -> None: ...
    def ran_eager(self) -> None: ...


class NotPrepared(Exception):
    """The graph of a call differs from the one compiled in the background."""


class Backend:
    """The backend of all regions of one model.

    Blocks share compiled code only if their backends are equal.
    """

    def __init__(self, owner: Owner, arguments: Mapping[str, Any]) -> None:
        self._owner = owner
        self._compile = backends.compiler(arguments)
        self.graph_cache = graph_cache.GraphCache()
        self._numbers = itertools.count(1)

    def __call__(self, gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        job = compile_job.current()
        if job is None or not job.uses_graph_cache:
            return self._graph(gm, inputs, job)
        key = graph_cache.key_of(gm)
        cached = self.graph_cache.get(key)
        if cached is None:
            # A graph with dynamic sizes has no key: torch's own caches have its code.
            if job.prepared and (key is not None or not job.prepared.varies):
                raise NotPrepared
            return self._graph(gm, inputs, job, key)
        job.compiled.append(cached.name)
        eager = self._eager(gm)
        return first_runs.guarded_forward(
            cached.name, cached.compiled, eager, self, changed=cached.changed
        )

    def _graph(
        self,
        gm: Any,
        inputs: Sequence[Any],
        job: compile_job.Job | None,
        key: Hashable = None,
    ) -> Callable[..., Any]:
        name = f"graph {next(self._numbers)}"
        backward = functools.partial(self._backward, f"backward of {name}")
        eager = self._eager(gm)
        try:
            with backends.record_mutated_inputs(len(inputs)) as changed:
                compiled = subgraphs.forward_of(self._compile(gm, inputs, backward))
        except Exception as error:
            if backends.is_tracing_restart(error):
                raise
            self._failed(failure(name, error, job), job)
            return eager
        if job is not None:
            job.compiled.append(name)
            job.varies = key is None
            self.graph_cache.put(
                key, graph_cache.CachedGraph(name, compiled, changed(), gm)
            )
        return first_runs.guarded_forward(
            name, compiled, eager, self, changed=changed()
        )

    def _failed(self, item: Fallback, job: compile_job.Job | None) -> None:
        if job is not None:
            job.failed += 1
            job.failure = item
            job.missed_deadline = job.missed_deadline or item.kind == "deadline"
        self._owner.graph_failed(item)

    def _eager(self, gm: Any) -> Callable[..., Any]:
        """Runs the graph uncompiled, operation by operation."""
        ran_eager = self._owner.ran_eager

        @functools.cache
        def plain() -> Callable[..., Any]:
            forward: Callable[..., Any] = subgraphs.forward_of(
                subgraphs.without_regions(gm)
            )
            return forward

        def eager(*args: Any) -> Any:
            ran_eager()
            return plain()(*args)

        return eager

    # -- first runs --------------------------------------------------------------------

    def first_run_passed(self, name: str) -> None:
        self._owner.graph_ran(name)

    def first_run_failed(self, name: str, error: BaseException) -> None:
        item = failure(name, error, None)
        kind = "first run" if item.kind == "compile error" else item.kind
        item = dataclasses.replace(item, kind=kind)
        self._owner.graph_failed(item)
        self._owner.graph_ran(name, item)

    def first_run_until(self) -> float:
        return time.monotonic() + self._owner.deadline_s

    # -- backward ----------------------------------------------------------------------

    def _backward(
        self, name: str, compile_it: Callable[[], Any], eager: Callable[..., Any]
    ) -> Any:
        """Compiles a backward graph, with its forward or when it first runs."""
        job = compile_job.current()
        try:
            compiled = compile_it() if job else self._compile_late(name, compile_it)
        except (Exception, interruptible_thread.Interrupted) as error:
            if isinstance(error, interruptible_thread.Interrupted) and job is not None:
                raise  # the whole compilation is over, not only this graph
            self._failed(failure(name, error, job), job)
            return eager
        backends.before_first_run(
            compiled,
            lambda run: first_runs.guarded_backward(name, run, eager, self),
        )
        return compiled

    def _compile_late(self, name: str, compile_it: Callable[[], Any]) -> Any:
        job = compile_job.Job(until=time.monotonic() + self._owner.deadline_s)
        on_deadline = functools.partial(end_compilers, job)
        try:
            with (
                interruptible_thread.interrupt_after(job.until, on_deadline),
                compile_job.running(job),
            ):
                compiled = compile_it()
        except interruptible_thread.Interrupted as error:
            error.phase = job.phase
            raise
        self._owner.graph_compiled(job.compilation(name))
        return compiled


def end_compilers(job: compile_job.Job, thread_id: int) -> bool:
    """After the deadline: records the thread's phase and kills the job's compilers."""
    stack = interruptible_thread.stack_of(thread_id)
    job.phase = compile_phases.phase_of_frames([(f.filename, f.name) for f in stack])
    job.end_compilers(thread_id)
    return True


def failure(what: str, error: BaseException, job: compile_job.Job | None) -> Fallback:
    seconds = job.seconds if job is not None else None
    root = root_cause(error)
    is_late = job is not None and time.monotonic() >= job.until
    if (
        isinstance(root, codegen_worker.ChildHung | interruptible_thread.Interrupted)
        or is_late
    ):
        phase = getattr(root, "phase", None) or (job.phase if job else None)
        return Fallback(
            kind="deadline",
            what=what,
            why="compiling took too long",
            phase=phase,
            seconds=seconds,
        )
    unsupported = type(root).__name__ == "Unsupported"
    kind = "unsupported" if unsupported else "compile error"
    return Fallback(kind, what, one_line(root), seconds=seconds)


def root_cause(error: BaseException) -> BaseException:
    """The error inside the wrappers that the compiler puts around it."""
    chain = [error]
    while (link := _inside(chain[-1])) is not None and link not in chain:
        chain.append(link)
    for link in chain:
        if isinstance(
            link, codegen_worker.ChildError | interruptible_thread.Interrupted
        ):
            return link
    return next((e for e in chain if type(e).__name__ not in _WRAPPERS), error)


_WRAPPERS = {"BackendCompilerFailed", "InductorError", "InternalTorchDynamoError"}


def _inside(error: BaseException) -> BaseException | None:
    inner = getattr(error, "inner_exception", None)
    return inner or error.__cause__ or error.__context__


def one_line(error: BaseException) -> str:
    """The error's type and the first line of its message."""
    text = str(error).strip()
    # torch names the error of a kernel on fake tensors in its explanation only.
    if inner := re.search(r"got (\w+)\(['\"](.*?)['\"]\)$", text, re.MULTILINE):
        return f"{inner[1]}: {inner[2][:200]}"
    first = text.splitlines()[0][:200] if text else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
