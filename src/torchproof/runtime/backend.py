"""The backend for `torch.compile`: compiles graphs, and runs failed ones uncompiled.

Takes an FX graph and its example inputs, returns a callable. A graph that fails in
AOTAutograd, in Inductor or in its first run runs as uncompiled FX, with eager's answers
and gradients. Only this graph loses its speed. What a first run writes to, and the RNG
state, are saved before and restored if it fails.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import signal
import time
import traceback
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchproof.records import Keywords
from torchproof.runtime import codegen_worker, compile_job, graph_cache, shared_code
from torchproof.runtime.compile_job import DeadlinePassed
from torchproof.runtime.status_report import Fallback, FallbackKind
from torchproof.runtime.telemetry import Telemetry
from torchproof.runtime.tensors.storages import free_bytes
from torchproof.torch_private import (
    backends,
    cudagraph_trees,
    frames,
    rejected_arguments,
    step_capture,
    subgraphs,
)

if TYPE_CHECKING:
    from torchproof.runtime.interfaces import Engine

# With CUDA graphs, the first run warms up, the second records, the third replays.
_RUNS_OF_CUDA_GRAPH = 3
_SHARE = 0.5  # of free memory that inputs of a run may be copied into

Run = Callable[..., Any]


class DeviceLost(RuntimeError):
    """A graph has broken the CUDA context; the message names it."""


class Rejected(Exception):
    """Eager rejects the call; nothing was compiled."""


class NotPrepared(Exception):
    """The graph of a call differs from the one compiled in the background."""


class _EagerGraph:
    """Runs a graph uncompiled, operation by operation; `why` says what has failed."""

    def __init__(self, gm: Any, telemetry: Telemetry) -> None:
        self.why: Fallback | None = None
        self._gm = gm
        self._telemetry = telemetry  # of the model that it was compiled for

    @functools.cached_property
    def _forward(self) -> Run:
        forward: Run = subgraphs.forward_of(subgraphs.without_regions(self._gm))
        return forward

    def run(self, *args: Any) -> Any:
        telemetry = Telemetry.of_running_call() or self._telemetry
        if self.why is not None and telemetry is not self._telemetry:
            telemetry.meets(self.why)
        telemetry.ran_eager("fallback")
        return self._forward(*args)


class GraphCompiler:
    """Compiles the graphs of one model, and reports to its engine what becomes of them.

    It outlives the model: other models may run its graphs, and a backward pass may be
    compiled after the model was deleted.
    """

    def __init__(self, engine: Engine, arguments: Keywords) -> None:
        self.engine = engine
        self._arguments = arguments
        self._compile = backends.compiler(arguments)
        self._runs_as_traced = arguments.get("backend") == "eager"
        self.graph_cache = graph_cache.GraphCache()
        self._numbers = itertools.count(1)

    def __call__(self, gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        job = compile_job.current()
        assert job is not None
        self.engine.note_graph(gm)
        job.symbolic_shapes = frames.symbolic_shapes_of(gm) or job.symbolic_shapes
        if not job.uses_graph_cache:
            return self._graph(gm, inputs, job)
        key = graph_cache.key_of(gm)
        cached = self.graph_cache.get(key)
        if cached is None:
            # A graph with dynamic sizes has no key: torch's own caches have its code.
            if job.prepared and (key is not None or not job.prepared.varies):
                raise NotPrepared
            return self._graph(gm, inputs, job, key)
        job.compiled.append(cached.name)
        eager = _EagerGraph(gm, self.engine.telemetry)
        return self._guarded_forward(
            cached.name, cached.compiled, eager, changed=cached.changed
        )

    def _graph(
        self,
        gm: Any,
        inputs: Sequence[Any],
        job: compile_job.Job,
        key: Hashable = None,
    ) -> Callable[..., Any]:
        name = f"graph {next(self._numbers)}"
        backward = functools.partial(self._backward, f"backward of {name}")
        eager = _EagerGraph(gm, self.engine.telemetry)
        checks = job.checks_types and not self._runs_as_traced
        if checks and (error := rejected_arguments.error_of(gm)) is not None:
            raise Rejected(one_line(error))
        if self.engine.has_raised(job.call):
            raise Rejected("the call has raised")
        try:
            with backends.record_mutated_inputs(len(inputs)) as changed:
                compiled = subgraphs.forward_of(self._compile(gm, inputs, backward))
        except Exception as error:
            if backends.is_tracing_restart(error) or comes_from_signal_handler(error):
                raise
            eager.why = failure(name, error, job)
            self._failed(eager.why, job)
            return eager.run
        job.compiled.append(name)
        job.varies = key is None
        self.graph_cache.put(
            key, graph_cache.CachedGraph(name, compiled, changed(), gm)
        )
        return self._guarded_forward(name, compiled, eager, changed=changed())

    def _failed(self, item: Fallback, job: compile_job.Job | None) -> None:
        if job is not None:
            job.failed += 1
            job.failure = item
            job.missed_deadline = job.missed_deadline or item.kind == "deadline"
        self.engine.telemetry.fell_back(item)

    # -- first runs --------------------------------------------------------------------

    def _guarded_forward(
        self,
        name: str,
        compiled: Run,
        eager: _EagerGraph,
        *,
        changed: list[int] | None,
    ) -> Run:
        """Guards the first run, which may write to the inputs `changed`, if known.

        If there is no memory for a copy of them, a failure propagates. A graph that is
        recorded as a CUDA graph is guarded until it was replayed.
        """
        left = self._guarded_runs()

        def first(*args: Any) -> Any:
            nonlocal left
            before = SavedInputs.of(
                value
                for number, value in enumerate(args)
                if changed is None or number in changed
            )
            try:
                answer = compiled(*args)
            except Exception as error:
                if before is None or comes_from_signal_handler(error):
                    raise
                self._restore(before, name, error)
                answer = eager.run(*args)  # raises if the error is the model's own
                eager.why = self._first_run_failed(name, error)
                _redirect(call, eager.run)
                return answer
            left -= 1
            if left <= 0:
                _redirect(call, compiled)
                self.engine.graph_ran(name)
            return answer

        call = functools.partial(first)
        return call

    def _guarded_runs(self) -> int:
        if torch.cuda.is_initialized() and cudagraph_trees.uses_cudagraphs(
            self._arguments
        ):
            return _RUNS_OF_CUDA_GRAPH
        return 1

    def _guarded_backward(
        self, name: str, run: Run, eager: Run
    ) -> tuple[Run, Callable[[], Run | None]]:
        """Guards the first run of a backward graph; also returns what to run later.

        It may write to tensors that its forward saved. They are copied if there is
        memory; if not, a failure propagates.
        """
        chosen: Run | None = None  # while runs are guarded
        left = self._guarded_runs()

        def first(args: list[Any]) -> Any:
            nonlocal chosen, left
            before = SavedInputs.of(v for v in args if not isinstance(v, nn.Parameter))
            # The compiled graph empties the list `args`.
            inputs = list(args) if before is not None else []
            try:
                answer = run(args)
            except Exception as error:
                if before is None or comes_from_signal_handler(error):
                    chosen = run
                    raise
                self._restore(before, name, error)
                self._tell_user(self._first_run_failed(name, error))
                chosen = eager
                return eager(inputs)
            left -= 1
            if left <= 0:
                chosen = run
            return answer

        return first, lambda: chosen

    def _restore(self, before: SavedInputs, name: str, error: BaseException) -> None:
        try:
            before.restore_after(name, error)
        except DeviceLost as lost:
            self._first_run_failed(name, lost)
            raise

    def _first_run_failed(self, name: str, error: BaseException) -> Fallback:
        item = failure(name, error, None)
        kind = "first run" if item.kind == "compile error" else item.kind
        item = dataclasses.replace(item, kind=kind)
        self.engine.telemetry.fell_back(item)
        self.engine.graph_ran(name, item)
        return item

    # -- backward ----------------------------------------------------------------------

    def _backward(
        self, name: str, compile_it: Callable[[], Any], eager: Callable[..., Any]
    ) -> Any:
        """Compiles a backward graph, with its forward or when it first runs."""
        job = compile_job.current()
        try:
            compiled = compile_it() if job else self._compile_late(name, compile_it)
        except (Exception, DeadlinePassed) as error:
            is_over = isinstance(error, DeadlinePassed) and job is not None
            if is_over or comes_from_signal_handler(error):
                raise  # the whole compilation is over, not only this graph
            item = failure(name, error, job)
            self._failed(item, job)
            if job is None:
                self._tell_user(item)
            return eager
        backends.before_first_run(
            compiled,
            lambda run: self._guarded_backward(name, run, eager),
        )
        return compiled

    def _compile_late(self, name: str, compile_it: Callable[[], Any]) -> Any:
        telemetry = self._user().telemetry
        deadline_s = self.engine.options.deadline_s
        job = compile_job.Job(until=time.monotonic() + deadline_s)
        with compile_job.running(job):
            compiled = compile_it()
        item = job.compilation(name)
        telemetry.add_compile_time(item.seconds)
        telemetry.compiled(item)
        return compiled

    def _user(self) -> Engine:
        """The engine of the model that the running backward pass belongs to."""
        leaves = backends.leaves_of_backward()
        return shared_code.owner_of(leaves, self.engine.backend) or self.engine

    def _tell_user(self, item: Fallback) -> None:
        """Reports a failed backward graph of shared code to the model that needs it."""
        user = self._user()
        if user is not self.engine:
            user.telemetry.fell_back(item)


def failure(what: str, error: BaseException, job: compile_job.Job | None) -> Fallback:
    seconds = job.seconds if job is not None else None
    root = root_cause(error)
    is_late = job is not None and time.monotonic() >= job.until
    if isinstance(root, codegen_worker.ChildHung | DeadlinePassed) or is_late:
        return Fallback(
            kind="deadline",
            what=what,
            why="compiling took too long",
            phase=getattr(root, "phase", None),
            seconds=seconds,
        )
    unsupported = type(root).__name__ == "Unsupported"
    kind: FallbackKind = "unsupported" if unsupported else "compile error"
    return Fallback(kind, what, one_line(root), seconds=seconds)


def root_cause(error: BaseException) -> BaseException:
    """The error inside the wrappers that the compiler puts around it."""
    chain = [error]
    while (link := _inside(chain[-1])) is not None and link not in chain:
        chain.append(link)
    for link in chain:
        if isinstance(link, codegen_worker.ChildError | DeadlinePassed):
            return link
    return next((e for e in chain if type(e).__name__ not in _WRAPPERS), error)


def comes_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler of the program raised it, and not the compiler."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(each, "__code__", None) for each in handlers} - {None}
    stack = traceback.walk_tb(root_cause(error).__traceback__)
    return any(frame.f_code in codes for frame, _ in stack)


def was_disturbed(error: BaseException) -> bool:
    """Whether tracing failed as it does if what it reads changes meanwhile.

    Dynamo traces a function again after a graph break, and must take the same path. It
    checks new guards on the values that the function has then.
    """
    root = root_cause(error)
    is_divergence = type(root).__name__ == "SpeculationLogDivergence"
    return is_divergence or any(text in str(root) for text in _DISTURBED)


_DISTURBED = (
    "Guard failed on the same frame it was created",
    "changed size during iteration",
    "mutated during iteration",
)
_WRAPPERS = {"BackendCompilerFailed", "InductorError", "InternalTorchDynamoError"}


def _inside(error: BaseException) -> BaseException | None:
    inner = getattr(error, "inner_exception", None)
    return inner or error.__cause__ or error.__context__


# The end of a traceback: the error with the name of its module, or with a message.
_LAST_LINE = r"^(?:(?:[a-z_]\w*\.)+[A-Z]\w+(?:: .*)?|[A-Z]\w+: .*)$"


def one_line(error: BaseException) -> str:
    """The error's type and the first line of its message."""
    text = str(error).strip()
    # torch names the error of a kernel on fake tensors in its explanation only.
    if inner := re.search(r"got (\w+)\(['\"](.*?)['\"]\)$", text, re.MULTILINE):
        return f"{inner[1]}: {inner[2][:200]}"
    # The first line of an error about mark_dynamic does not say so.
    if marked := re.search(r"- (You marked .*?)( If you're using Dim|$)", text, re.M):
        text = marked[1]
    # The processes that compile Triton kernels send a whole traceback.
    if "An exception occurred in a subprocess" in text:
        ends = re.findall(_LAST_LINE, text, re.MULTILINE)
        text = re.sub(r"^(?:[a-z_]\w*\.)+", "", ends[-1]) if ends else text
    # A line that only announces the next one is joined with it.
    first = re.sub(r":\s*\n\s*", ": ", text).splitlines()[0][:200] if text else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


# -- first runs ------------------------------------------------------------------------


def _redirect(call: functools.partial[Any], run: Run) -> None:
    """Changes what later calls run; a Python function between would cost a frame."""
    call.__setstate__((run, (), {}, {}))  # type: ignore[attr-defined]


def _fits(tensors: Sequence[Tensor]) -> bool:
    sizes: dict[torch.device, int] = {}
    for tensor in tensors:
        size = tensor.numel() * tensor.itemsize
        sizes[tensor.device] = sizes.get(tensor.device, 0) + size
    return all(size < _SHARE * free_bytes(device) for device, size in sizes.items())


class SavedInputs:
    """Copies of a run's tensors and of the RNG state before it."""

    @classmethod
    def of(cls, values: Iterable[Any]) -> SavedInputs | None:
        """None if copies of the tensors would take too much of the free memory."""
        tensors = [value for value in values if isinstance(value, Tensor)]
        return cls(tensors) if _fits(tensors) else None

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = [
            (tensor, tensor.detach().clone(), tensor.grad_fn) for tensor in tensors
        ]
        self._cpu = torch.get_rng_state()
        self._cuda = self._stream = None
        if torch.cuda.is_initialized():
            self._cuda = torch.cuda.get_rng_state_all()
            self._stream = torch.cuda.current_stream()

    def restore_after(self, name: str, error: BaseException) -> None:
        if self._stream is not None:
            step_capture.end_failed_recording(self._stream)
        if device_is_lost():
            raise DeviceLost(
                f"{name} has broken the CUDA context, and only a new process can use"
                " the device; with `example=` a child process tries the model first"
            ) from error
        if any(value.grad_fn is not history for value, _, history in self._tensors):
            raise error  # the autograd graph cannot be restored
        with torch.no_grad():
            for value, saved, _ in self._tensors:
                is_strided = value.layout is torch.strided and not value.is_nested
                if not is_strided or not torch.equal(value.detach(), saved):
                    value.detach().copy_(saved)
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
            torch.cuda.empty_cache()  # memory that the failed run had reserved


def device_is_lost() -> bool:
    """Whether the CUDA context is unusable, as after an illegal address."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
