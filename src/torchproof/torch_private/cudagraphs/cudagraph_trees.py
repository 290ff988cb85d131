"""CUDA graph trees: the runs of their graphs, and the memory of the outputs.

On CUDA the real trees run. Elsewhere the trees are simulated: a graph that requests
CUDA graphs runs uncompiled, and `RunListener` is called as if a tree had run it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from torchproof.records import Keywords, TorchConfig
from torchproof.torch_private.hooks import patched
from torchproof.torch_private.operations import without_modes

_SET_ERRORS = (
    "_set_storage_access_error_msg",
    "_set_storage_data_ptr_access_error_msg",
)
Mode = Literal["inference", "forward", "backward"]


@dataclass(frozen=True)
class Graph:
    """One compiled graph.

    `mutates` are the indices of the inputs that it mutates.
    """

    mode: Mode
    wants_cudagraph: bool
    mutates: frozenset[int] = frozenset()
    simulated: bool = True


class RunListener(Protocol):
    """Called at each run of a graph. It must not keep inputs: the run may free them."""

    def begins(self, graph: Graph, inputs: Sequence[Any]) -> None: ...

    def ends(self, graph: Graph, outputs: Any) -> None: ...

    def ran_backward(self) -> None: ...  # a backward ran, but not as a CUDA graph


def uses_cudagraphs(arguments: Keywords) -> bool:
    """Whether torch.compile with these arguments uses CUDA graphs on CUDA."""
    config = importlib.import_module("torch._inductor.config")
    inductor = importlib.import_module("torch._inductor")
    if arguments.get("backend", "inductor") != "inductor":
        return arguments.get("backend") == "cudagraphs"
    options = dict(arguments.get("options") or {})
    if arguments.get("mode"):
        options |= inductor.list_mode_options(arguments["mode"])
    return bool(options.get("triton.cudagraphs", config.triton.cudagraphs))


def generation() -> tuple[int, bool]:
    """The number of the current generation, and whether the program marks steps."""
    trees = importlib.import_module("torch._inductor.cudagraph_trees")
    guard = importlib.import_module("torch._dynamo.mutation_guard")
    marks = trees.MarkStepBox.mark_step_counter
    return (marks, True) if marks else (guard.GenerationTracker.generation, False)


@contextlib.contextmanager
def marks(note: Callable[[], None]) -> Iterator[None]:
    """Calls `note()` when the program marks the beginning of a step."""
    trees = importlib.import_module("torch._inductor.cudagraph_trees")
    original = trees.mark_step_begin

    def mark_step_begin() -> None:
        note()
        original()

    with patched(trees, "mark_step_begin", mark_step_begin):
        yield


# -- runs of graphs --------------------------------------------------------------------


@contextlib.contextmanager
def graph_runs(listener: RunListener) -> Iterator[None]:
    """Calls `listener` for the graphs of real and of simulated trees."""
    with contextlib.ExitStack() as hooks:
        hooks.enter_context(_captured_runs(listener))
        if torch.cuda.is_available():
            hooks.enter_context(_tree_runs(listener))
        yield


@contextlib.contextmanager
def _captured_runs(listener: RunListener) -> Iterator[None]:
    """Runs Inductor's graphs as AOTAutograd captured them, without CUDA tensors."""
    original = torch._TorchCompileInductorWrapper.__call__
    other = torch._TorchCompileWrapper.__call__
    functorch = importlib.import_module("torch._functorch.config")

    def inner(gm: Any, example_inputs: Any, **kwargs: Any) -> Any:
        return _boxed(gm, _graph(gm, kwargs), listener)

    def compile_graph(self: Any, model_: Any, inputs_: Sequence[Any]) -> Any:
        if _on_cuda(inputs_):
            return original(self, model_, inputs_)
        return capture(model_, inputs_, self.config)

    def compile_other(self: Any, model_: Any, inputs_: Sequence[Any]) -> Any:
        if self.compiler_name != "cudagraphs" or _on_cuda(inputs_):
            return other(self, model_, inputs_)
        return capture(model_, inputs_, {"triton.cudagraphs": True})

    def capture(model_: Any, inputs_: Any, config: TorchConfig) -> Any:
        compile_fx = importlib.import_module("torch._inductor.compile_fx").compile_fx
        with functorch.patch(enable_autograd_cache=False):
            return compile_fx(
                model_, inputs_, inner_compile=inner, config_patches=dict(config)
            )

    with (
        patched(torch._TorchCompileInductorWrapper, "__call__", compile_graph),
        patched(torch._TorchCompileWrapper, "__call__", compile_other),
    ):
        yield


def _on_cuda(inputs: Sequence[Any]) -> bool:
    return any(getattr(each, "is_cuda", False) for each in inputs)


def _graph(gm: Any, kwargs: Keywords) -> Graph:
    config = importlib.import_module("torch._inductor.config")
    boxed = kwargs.get("cudagraphs")
    wants_cudagraph = bool(config.triton.cudagraphs if boxed is None else boxed)
    if config.triton.cudagraph_skip_dynamic_graphs and _has_symbolic_sizes(gm):
        wants_cudagraph = False
    mode: Mode = "forward"
    if kwargs.get("is_backward"):
        mode = "backward"
    elif kwargs.get("is_inference"):
        mode = "inference"
    static = frozenset(kwargs.get("static_input_idxs") or ())
    return Graph(mode, wants_cudagraph, mutates=_mutated_inputs(gm) - static)


def _has_symbolic_sizes(gm: Any) -> bool:
    """Whether the graph has symbolic sizes as inputs, as dynamic graphs do."""
    inputs = (node for node in gm.graph.nodes if node.op == "placeholder")
    return any(isinstance(node.meta.get("val"), torch.SymInt) for node in inputs)


def _mutated_inputs(gm: Any) -> frozenset[int]:
    """The inputs that a captured graph mutates."""
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    written = {
        node.args[0]
        for node in gm.graph.nodes
        if node.op == "call_function"
        and str(node.target).startswith("aten.copy_")
        and node.args
    }
    return frozenset(i for i, node in enumerate(inputs) if node in written)


def _boxed(gm: Any, graph: Graph, listener: RunListener) -> Callable[[list[Any]], Any]:
    def call(args: list[Any]) -> Any:
        listener.begins(graph, args)
        inputs = tuple(args)
        args.clear()  # as compiled code does, to free them early
        with without_modes(), torch.no_grad():
            outputs = gm(*inputs)
        listener.ends(graph, outputs)
        return outputs

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


@contextlib.contextmanager
def _tree_runs(listener: RunListener) -> Iterator[None]:
    """Calls `listener` for the graphs of real trees."""
    trees = importlib.import_module("torch._inductor.cudagraph_trees")
    manager = trees.CUDAGraphTreeManager
    local = threading.local()
    original = manager.run
    set_to_running_backward = manager.set_to_running_backward

    @functools.wraps(original)
    def watched(self: Any, new_inputs: list[Any], function_id: Any) -> Any:
        if getattr(local, "inside", False):  # the run restarts at a root
            return original(self, new_inputs, function_id)
        function = self.ids_to_funcs[function_id]
        mode = self.id_to_mode[function_id].name.lower()
        mutates = frozenset(function.mutated_input_idxs)
        mutates -= frozenset(function.static_input_idxs)
        graph = Graph(mode, True, mutates=mutates, simulated=False)
        listener.begins(graph, new_inputs)
        local.inside = True
        try:
            with without_modes():
                outputs = original(self, new_inputs, function_id)
        finally:
            local.inside = False
        listener.ends(graph, outputs)
        return outputs

    def ran_backward(self: Any) -> None:
        set_to_running_backward(self)
        listener.ran_backward()

    with (
        patched(manager, "run", watched),
        patched(manager, "set_to_running_backward", ran_backward),
        _independent_outputs(),
    ):
        yield


@contextlib.contextmanager
def _independent_outputs() -> Iterator[None]:
    """Makes each run return new tensors, and lets freed tensors be read.

    Torch returns the same tensor in each replay of a graph, so that a tensor would not
    show which run it is from. Freed tensors stay readable as they are in replays:
    otherwise an error in the warm-up would hide all later reads.
    """
    trees = importlib.import_module("torch._inductor.cudagraph_trees")
    manager, node = trees.CUDAGraphTreeManager, trees.CUDAGraphNode
    free = manager.dealloc_current_path_weakrefs

    def freed(self: Any) -> None:
        with contextlib.ExitStack() as silent:
            for name in _SET_ERRORS:  # only CUDA builds have these functions
                silenced = patched(torch._C, name, lambda *args: None)
                silent.enter_context(silenced)
            free(self)

    def make_none(self: Any) -> None:
        self.cached_tensor_outputs.extend([None] * len(self.outputs_metadata))

    with (
        patched(manager, "dealloc_current_path_weakrefs", freed),
        patched(node, "_initialize_cached_tensors", make_none),
    ):
        yield


# -- memory ----------------------------------------------------------------------------


class Memory:
    """A weak reference to a tensor's memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._ref = StorageWeakRef(tensor.untyped_storage())
        self.key: int = self._ref.cdata  # unique while this object lives

    @property
    def alive(self) -> bool:
        return not self._ref.expired()

    def poison(self, dtype: torch.dtype) -> None:
        """Fills floating-point memory with NaN; other dtypes are left unchanged."""
        if not (dtype.is_floating_point or dtype.is_complex) or not self.alive:
            return
        storage = torch.UntypedStorage._new_with_weak_ptr(self.key)
        if storage is None:
            return
        whole = torch.empty(0, dtype=dtype, device=storage.device)
        with without_modes(), torch.no_grad():
            whole.set_(storage)
            whole.fill_(float("nan"))


def memory_key(tensor: Any) -> int | None:
    """An identifier of a tensor's memory; None if it has no storage."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):
        return None
