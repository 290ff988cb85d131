"""Reports which of Inductor's CUDA graphs are skipped, split, recorded and replayed.

Takes a receiver with one method for each kind of event, and calls it when the event
happens. The hooks can be installed without a GPU, to see what torch decides while it
compiles.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from torchproof.torch_private.hooks import patched

PENDING_BACKWARD = "outputs of an earlier step still wait for their backward"
NOTHING_TO_CAPTURE = "no operation of the graph can be captured"
_SKIPPERS = (
    "torch._inductor.cudagraph_utils",
    "torch._inductor.cudagraph_trees",
    "torch._inductor.output_code",
    "torch._inductor.compile_fx",
    "torch._dynamo.backends.cudagraphs",
)
_OUTCOMES = {
    "record_function": "recorded",
    "execute_node": "replayed",
    "run_eager": "warmed_up",
}
# The scheduler's reason for all operations of a graph without CUDA graphs.
_DISABLED = "partition includes all ops when cudagraphs is disabled"
_local = threading.local()  # backward runs in other threads


@dataclass(frozen=True)
class Skip:
    """A graph that runs without a CUDA graph, with torch's reason.

    The reason quotes one line. `stacks` has all lines that mutate inputs, if these are
    the reason.
    """

    reason: str
    compile_id: str | None
    stacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Split:
    """An operation that is left out of a CUDA graph and splits it in two."""

    reason: str
    operation: str
    stack: str | None
    compile_id: str | None


@dataclass(frozen=True)
class MovedInput:
    """A static input whose address changed since the graph was recorded."""

    name: str
    stack: str | None
    address: int


How = Literal["ungraphed", "warmed_up", "recorded", "replayed"]


@dataclass
class GraphRun:
    """One run of a graph that requests a CUDA graph.

    `graph` is the same for all input sizes of one compiled graph. `mismatches` are the
    reasons why existing recordings of this size did not fit.
    """

    graph: int
    phase: str  # forward, backward, inference
    compile_id: str | None
    sizes: tuple[int, ...]  # dynamic sizes
    shapes: tuple[tuple[int, ...], ...]  # of inputs that are copied into the graph
    how: How = "ungraphed"
    mismatches: tuple[str, ...] = ()
    moved: tuple[MovedInput, ...] = ()
    pool: tuple[int, int] | None = None
    pool_bytes: int | None = None  # after recording or warming up
    checks: list[tuple[Any, Any]] = field(default_factory=list)


class Receiver(Protocol):
    def skipped(self, skip: Skip) -> None: ...
    def split(self, split: Split) -> None: ...
    def ran(self, graph_run: GraphRun) -> None: ...


@contextlib.contextmanager
def watched(receiver: Receiver) -> Iterator[None]:
    """Reports all events about CUDA graphs to the receiver."""
    with contextlib.ExitStack() as hooks:
        hooks.enter_context(_mutations())
        for hook in (_skips, _silent_skips, _splits, _pending, _runs):
            hooks.enter_context(hook(receiver))
        yield


@contextlib.contextmanager
def without_graph_caches() -> Iterator[None]:
    """Turns the graph caches off: cached graphs quote lines of another program."""
    inductor = importlib.import_module("torch._inductor.config")
    autograd = importlib.import_module("torch._functorch.config")
    with (
        inductor.patch(fx_graph_cache=False, fx_graph_remote_cache=False),
        autograd.patch(enable_autograd_cache=False),
    ):
        yield


def is_recording() -> bool:
    """Whether this thread is warming up or recording a CUDA graph."""
    graph_run = getattr(_local, "graph_run", None)
    return graph_run is not None and graph_run.how in {"warmed_up", "recorded"}


def _compile_id() -> str | None:
    guards = importlib.import_module("torch._guards")
    compile_id = guards.CompileContext.current_compile_id()
    return None if compile_id is None else str(compile_id)


# -- skips -------------------------------------------------------------------------


@contextlib.contextmanager
def _skips(receiver: Receiver) -> Iterator[None]:
    """Patches the logging function in every module that imports it by name.

    All modules are imported first. One imported later would keep the patched function.
    """
    modules = [importlib.import_module(name) for name in _SKIPPERS]
    with contextlib.ExitStack() as patches:
        for module in modules:
            original = module.log_cudagraph_skip_and_bump_counter
            note = _noting_skip(original, receiver)
            patches.enter_context(
                patched(module, "log_cudagraph_skip_and_bump_counter", note)
            )
        yield


def _noting_skip(
    original: Callable[[str], None], receiver: Receiver
) -> Callable[[str], None]:
    @functools.wraps(original)
    def note(msg: str) -> None:
        graph_run = getattr(_local, "graph_run", None)
        compile_id = graph_run.compile_id if graph_run else _compile_id()
        stacks = _local.stacks if graph_run and "mutated inputs" in msg else ()
        _local.reported = True
        receiver.skipped(Skip(msg, compile_id, stacks))
        original(msg)

    return note


@contextlib.contextmanager
def _mutations() -> Iterator[None]:
    """Stores the lines that mutate inputs, for the skip that follows."""
    trees = importlib.import_module("torch._inductor.cudagraph_trees")
    original = trees.check_for_mutation

    @functools.wraps(original)
    def check(func: Any, inputs: list[Any], recorded: Callable[..., bool]) -> Any:
        reason = original(func, inputs, recorded)
        changed = [
            i for i in func.mutated_input_idxs if i not in func.static_input_idxs
        ]
        mutated = [func.placeholders[i] for i in changed if not recorded(inputs[i])]
        stacks = [each.mutating_use_stack_trace for each in mutated]
        _local.stacks = tuple(dict.fromkeys(filter(None, stacks))) if reason else ()
        return reason

    with patched(trees, "check_for_mutation", check):
        yield


@contextlib.contextmanager
def _silent_skips(receiver: Receiver) -> Iterator[None]:
    """Reports partitioned graphs of which nothing is captured; torch logs no reason."""
    module = importlib.import_module("torch._inductor.output_code")
    original = module.cudagraph_partition_post_compile

    @functools.wraps(original)
    def wrap(inputs: Any, graph: Any, cudagraphs: Any, *args: Any, **kw: Any) -> Any:
        _local.reported = False
        answer = original(inputs, graph, cudagraphs, *args, **kw)
        if not cudagraphs and not _local.reported and "cuda" in graph.device_types:
            failed = graph.cudagraph_info.cudagraph_fail_reasons
            reason = ", ".join(failed) or NOTHING_TO_CAPTURE
            receiver.skipped(Skip(reason, _compile_id()))
        return answer

    with patched(module, "cudagraph_partition_post_compile", wrap):
        yield


@contextlib.contextmanager
def _pending(receiver: Receiver) -> Iterator[None]:
    """Reports graphs that are warmed up again and again, and never recorded."""
    trees = importlib.import_module("torch._inductor.cudagraph_trees")
    owner = trees.CUDAGraphTreeManager
    name = "check_warn_on_unable_to_start_executing"
    original = getattr(owner, name)

    @functools.wraps(original)
    def check(self: Any, function_id: Any) -> None:
        already_warned = function_id in self.warned_functions
        original(self, function_id)
        if function_id in self.warned_functions and not already_warned:
            number = self.id_to_compile_id[function_id]
            compile_id = None if number is None else str(number)
            receiver.skipped(Skip(PENDING_BACKWARD, compile_id))

    with patched(owner, name, check):
        yield


# -- operations left out -----------------------------------------------------------


@contextlib.contextmanager
def _splits(receiver: Receiver) -> Iterator[None]:
    scheduler = importlib.import_module("torch._inductor.scheduler")
    graphs = importlib.import_module("torch._inductor.virtualized").V
    original = scheduler.Scheduler.should_partition

    @functools.wraps(original)
    def decide(self: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
        reason = original(self, node, *args, **kwargs)
        fused = isinstance(node, scheduler.FusedSchedulerNode)
        is_split = reason and reason != _DISABLED and not fused
        if is_split and "cuda" in graphs.graph.device_types:
            operation, stack = _traced(node.node)
            receiver.split(
                Split(
                    reason=reason,
                    operation=operation,
                    stack=stack,
                    compile_id=_compile_id(),
                )
            )
        return reason

    with patched(scheduler.Scheduler, "should_partition", decide):
        yield


def _traced(operation: Any) -> tuple[str, str | None]:
    """The name of an operation, and the stack of the nearest node that has one.

    Nodes that the compiler adds have no stack, but their users have.
    """
    origins = sorted(getattr(operation, "origins", None) or (), key=str)
    named = getattr(operation, "op_overload", None) or (
        origins[0].target if origins else type(operation).__name__
    )
    visited = set(origins)
    nearest = list(origins)
    for node in nearest:  # the list grows meanwhile
        if node.stack_trace:
            return str(named), node.stack_trace
        nearest += [user for user in node.users if user not in visited]
        visited.update(node.users)
    return str(named), None


# -- recordings and replays --------------------------------------------------------


@contextlib.contextmanager
def _runs(receiver: Receiver) -> Iterator[None]:
    trees = importlib.import_module("torch._inductor.cudagraph_trees")
    manager, node = trees.CUDAGraphTreeManager, trees.CUDAGraphNode
    with contextlib.ExitStack() as patches:
        patches.enter_context(patched(manager, "run", _run(manager.run, receiver)))
        for name, how in _OUTCOMES.items():
            step = _step(getattr(manager, name), how)
            patches.enter_context(patched(manager, name, step))
        check = _check(node.check_invariants)
        patches.enter_context(patched(node, "check_invariants", check))
        yield


def _run(original: Callable[..., Any], receiver: Receiver) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: Any, new_inputs: list[Any], function_id: Any) -> Any:
        if getattr(_local, "graph_run", None) is not None:  # the run restarts at a root
            return original(self, new_inputs, function_id)
        _local.graph_run = graph_run = _begin(self, new_inputs, function_id)
        try:
            return original(self, new_inputs, function_id)
        finally:
            _local.graph_run = None
            if graph_run.how in {"recorded", "warmed_up"}:
                graph_run.pool = tuple(self.cuda_graphs_thread_pool)
                graph_run.pool_bytes = _pool_bytes(graph_run.pool)
            receiver.ran(graph_run)

    return run


def _begin(manager: Any, inputs: Sequence[Any], function_id: Any) -> GraphRun:
    wrapped = manager.ids_to_funcs[function_id]
    compile_id = manager.id_to_compile_id[function_id]
    static = set(wrapped.static_input_idxs)
    return GraphRun(
        graph=id(wrapped.model),
        phase=manager.id_to_mode[function_id].name.lower(),
        compile_id=None if compile_id is None else str(compile_id),
        sizes=tuple(value for value in inputs if isinstance(value, int)),
        shapes=tuple(
            tuple(value.shape)
            for index, value in enumerate(inputs)
            if index not in static and isinstance(value, torch.Tensor)
        ),
    )


def _pool_bytes(pool: Any) -> int:
    trees = importlib.import_module("torch._inductor.cudagraph_trees")
    segments = trees.get_cudagraph_segments(tuple(pool))
    return sum(segment["total_size"] for segment in segments)


def _step(original: Callable[..., Any], how: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        graph_run = getattr(_local, "graph_run", None)
        if graph_run is not None:
            graph_run.how = how
            if how == "recorded":  # recording frees the inputs
                graph_run.mismatches = tuple(
                    dict.fromkeys(str(s) for _, s in graph_run.checks)
                )
                graph_run.moved = tuple(_moved(graph_run.checks, args[0]))
            graph_run.checks.clear()
        return original(self, *args, **kwargs)

    return step


def _check(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def check(self: Any, inputs: list[Any]) -> Any:
        status, logger = original(self, inputs)
        graph_run = getattr(_local, "graph_run", None)
        if graph_run is not None and status.name != "SUCCESS":
            graph_run.checks.append((self, status))
        return status, logger

    return check


def _moved(
    checks: Sequence[tuple[Any, Any]], inputs: Sequence[Any]
) -> Iterator[MovedInput]:
    """The static inputs whose address differs from the latest recording's."""
    utils = importlib.import_module("torch._inductor.cudagraph_utils")
    for node, _ in checks[-1:]:
        for index in node.non_managed_static_input_idxs:
            address = inputs[index].data_ptr()
            if address != node.static_input_data_ptrs[index]:
                placeholder = node.wrapped_function.placeholders[index]
                stack = utils.get_placeholder_stack_trace(placeholder)
                yield MovedInput(placeholder.name, stack, address)
