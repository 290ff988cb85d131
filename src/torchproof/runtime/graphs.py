"""The backend: compiles graphs, and runs those that fail as the graphs they are.

A graph that torch has traced can be run without compiling it, with eager's answers and
gradients. So what fails in AOTAutograd, in Inductor or in its first run costs this one
graph its speed, and nothing else.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from torchproof.runtime import attempts, jobs, worker
from torchproof.runtime.facts import Compilation, Fallback
from torchproof.torch_private import backends


class Owner(Protocol):
    """Whom the backend tells what it had to run eager."""

    deadline_s: float

    def graph_compiled(self, item: Compilation) -> None: ...
    def graph_failed(self, item: Fallback) -> None: ...
    def ran_eager(self) -> None: ...


class Backend:
    """What torch.compile is given; one for all regions of a model.

    Blocks share compiled code only if their backends are equal.
    """

    def __init__(self, owner: Owner, arguments: Mapping[str, Any]) -> None:
        self._owner = owner
        self._compile = backends.compiler(arguments, self._backward)
        self._graphs = 0

    def __call__(self, gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        self._graphs += 1
        name, job = f"graph {self._graphs}", jobs.current()
        try:
            with backends.noting_changes() as changed:
                compiled = self._compile(gm, inputs)
        except Exception as error:
            self._failed(failure(name, error, job), job)
            return self._eager(gm)
        if job is not None:
            job.compiled += 1
        return self._first_run(name, compiled, gm, changed=changed())

    def _failed(self, item: Fallback, job: jobs.Job | None) -> None:
        if job is not None:
            job.missed = job.missed or item.kind == "deadline"
        self._owner.graph_failed(item)

    def _eager(self, gm: Any) -> Callable[..., Any]:
        run, owner = gm.forward, self._owner

        def eager(*args: Any) -> Any:
            owner.ran_eager()
            return run(*args)

        return eager

    def _first_run(
        self, name: str, compiled: Any, gm: Any, *, changed: list[int] | None
    ) -> Callable[..., Any]:
        """The compiled graph, whose first run may fail without harm."""
        run = None

        def guarded(*args: Any) -> Any:
            if run is not None:
                return run(*args)
            return first(*args)

        def first(*args: Any) -> Any:
            nonlocal run
            before = _Before(args, changed)
            try:
                answer = compiled(*args)
            except Exception as error:
                self._recover(name, before, error)
                eager = self._eager(gm)
                answer = eager(*args)  # raises if the error is the model's own
                item = failure(name, error, None)
                self._owner.graph_failed(Fallback("first run", name, item.why))
                run = eager
                return answer
            run = compiled
            return answer

        return guarded

    def _recover(self, name: str, before: _Before, error: Exception) -> None:
        if device_is_lost():
            raise RuntimeError(
                f"{name} of {self._owner} left the device in a state that only a new"
                " process cures; `example=` tries the model in a child first"
            ) from error
        before.restore()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # what the failed run had reserved

    # -- backward ----------------------------------------------------------------------

    def _backward(self, compile_it: Callable[[], Any], eager: Any) -> Any:
        """Compiles a backward graph, ahead with its forward or when it first runs."""
        job = jobs.current()
        name = f"backward of graph {self._graphs}"
        try:
            if job is not None:
                return compile_it()
            job = jobs.Job(until=time.monotonic() + self._owner.deadline_s)
            over = functools.partial(_end_compilers, job)
            with attempts.interrupted(job.until, over), jobs.under_way(job):
                compiled = compile_it()
            self._owner.graph_compiled(job.compilation(name))
            return compiled
        except (Exception, attempts.GivenUp) as error:
            if isinstance(error, attempts.GivenUp) and jobs.current() is not None:
                raise  # not this one alone is given up
            self._failed(failure(name, error, job), job)
            return eager


def _end_compilers(job: jobs.Job, thread_id: int) -> None:
    job.end_compilers()


def failure(what: str, error: BaseException, job: jobs.Job | None) -> Fallback:
    seconds = job.seconds if job is not None else None
    root = root_cause(error)
    if isinstance(root, worker.ChildHung | attempts.GivenUp):
        return Fallback(
            "deadline", what, "compiling took too long", root.phase, seconds
        )
    unsupported = type(root).__name__ == "Unsupported"
    kind = "unsupported" if unsupported else "compile error"
    return Fallback(kind, what, one_line(root), seconds=seconds)


def root_cause(error: BaseException) -> BaseException:
    """What the compiler's own wrappers are around."""
    chain = [error]
    while (link := _inside(chain[-1])) is not None and link not in chain:
        chain.append(link)
    for link in chain:
        if isinstance(link, worker.ChildError | attempts.GivenUp):
            return link
    return next((e for e in chain if type(e).__name__ not in _WRAPPERS), error)


_WRAPPERS = {"BackendCompilerFailed", "InductorError", "InternalTorchDynamoError"}


def _inside(error: BaseException) -> BaseException | None:
    inner = getattr(error, "inner_exception", None)
    return inner or error.__cause__ or error.__context__


def one_line(error: BaseException) -> str:
    """The error's type and the first line of what it says."""
    text = str(error).strip()
    # A kernel that failed on fake tensors is named in the explanation only.
    if told := re.search(r"got (\w+)\(['\"](.*?)['\"]\)$", text, re.MULTILINE):
        return f"{told[1]}: {told[2][:200]}"
    first = text.splitlines()[0][:200] if text else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def device_is_lost() -> bool:
    """Whether the CUDA context is beyond use, as after an illegal address."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


class _Before:
    """What a run of a graph can change, as it was before: inputs and random numbers."""

    def __init__(self, args: Sequence[Any], changed: list[int] | None) -> None:
        given = enumerate(args)
        self._inputs = [
            (value, value.detach().clone())
            for number, value in given
            if isinstance(value, Tensor) and (changed is None or number in changed)
        ]
        self._cpu = torch.get_rng_state()
        self._cuda = (
            torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        )

    def restore(self) -> None:
        with torch.no_grad():
            for value, saved in self._inputs:
                if not torch.equal(value.detach(), saved):
                    value.detach().copy_(saved)
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
