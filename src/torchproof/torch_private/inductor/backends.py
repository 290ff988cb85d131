"""Backends as torch.compile uses them, with control over each backward graph."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchproof.records import Keywords, collector_paused
from torchproof.torch_private import contract
from torchproof.torch_private.dynamo.switches import graph_compiler
from torchproof.torch_private.replacements import Place, Replacement

_noted: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar(
    "torchproof_noted", default=None
)
# Guards contain which sizes are dynamic, and recompile limits do not change code.
_SET_BY_CALLS = {
    "automatic_dynamic_shapes",
    "assume_static_by_default",
    "recompile_limit",
    "accumulated_recompile_limit",
    "fail_on_recompile_limit_hit",
}

Backward = Callable[[Callable[[], Any], Callable[..., Any]], Any]


def compiler(arguments: Keywords) -> Callable[[Any, Any, Backward], Any]:
    """The backend for these arguments of torch.compile.

    It takes a graph, its inputs and a function `backward(compile, eager)`. Inductor
    calls that function for each backward graph: `compile` compiles the graph, `eager`
    runs it uncompiled.
    """
    backend: Any = graph_compiler(arguments)
    if (arguments.get("backend") or "inductor") != "inductor":
        return lambda gm, inputs, backward: backend(gm, inputs)

    def compile_graph(gm: Any, inputs: Any, backward: Backward) -> Any:
        from torch._inductor import compile_fx

        def inner(graph: Any, example_inputs: Any, **kwargs: Any) -> Any:
            if not kwargs.get("is_backward"):
                return compile_fx.compile_fx_inner(graph, example_inputs, **kwargs)
            eager_graph = copy.deepcopy(graph)  # compiling changes it
            return backward(
                lambda: compile_fx.compile_fx_inner(graph, example_inputs, **kwargs),
                _boxed(eager_graph),
            )

        return compile_fx.compile_fx(
            gm, inputs, inner_compile=inner, config_patches=backend.config
        )

    return compile_graph


def before_first_run(
    compiled: Any,
    wrap: Callable[[Callable[..., Any]], tuple[Callable[..., Any], Callable[[], Any]]],
) -> None:
    """Wraps the first runs of a graph that Inductor compiled.

    `wrap` takes the compiled callable. It returns the callable for the first runs, and
    a function that returns the callable for all later runs, or None as long as further
    runs are first ones.
    """
    run = getattr(compiled, "current_callable", None)
    if run is None:
        return
    once, afterwards = wrap(run)

    def first(args: Any) -> Any:
        try:
            return once(args)
        finally:
            if (chosen := afterwards()) is not None:
                compiled.current_callable = chosen

    compiled.current_callable = first


def _boxed(graph: Any) -> Callable[..., Any]:
    def run(args: list[Any]) -> Any:
        inputs = tuple(args)
        args.clear()  # as compiled code does, to free them early
        with torch.no_grad():
            return graph(*inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@contextlib.contextmanager
def record_mutated_inputs(inputs: int) -> Iterator[Callable[[], list[int] | None]]:
    """Yields a function that returns which inputs the graph compiled inside mutates.

    It returns None if they are unknown. A graph from AOTAutograd's cache is covered
    too. `inputs` is the number of inputs of the graph.
    """
    noted: list[Any] = []
    token = _noted.set(noted)
    try:
        with _metadata.active():
            yield lambda: _changed(noted[-1].input_info, inputs) if noted else None
    finally:
        _noted.reset(token)


def _changed(noted: Sequence[Any], inputs: int) -> list[int] | None:
    if len(noted) != inputs:
        return None  # inputs that share memory were merged, so the numbers differ
    return [
        number
        for number, info in enumerate(noted)
        if info.mutates_data or info.mutates_metadata
    ]


def _places_of_metadata() -> Iterator[Place]:
    home = "torch._functorch._aot_autograd.runtime_wrappers"
    yield importlib.import_module(home).RuntimeWrapper, "post_compile", _noting_metadata


def _noting_metadata(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def post_compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        noted = _noted.get()
        if noted is not None and "runtime_metadata" in kwargs:
            noted.append(kwargs["runtime_metadata"])
        return original(self, *args, **kwargs)

    return post_compile


_metadata = Replacement(_places_of_metadata)


def is_tracing_restart(error: Exception) -> bool:
    """Whether the error is Dynamo's request to restart tracing, not a failure."""
    from torch._dynamo.exc import RestartAnalysis

    return isinstance(error, RestartAnalysis)


def code_depends_on_addresses() -> bool:
    """Whether settings make Inductor's code depend on the tensors of one model."""
    from torch._inductor import config

    return bool(config.freezing or config.triton.cudagraphs)


def settings_hash() -> tuple[bytes, bytes, int]:
    """Hashes of the compiler's settings, of those that compiled code depends on."""
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    return inductor.get_hash(), functorch.get_hash(), _dynamo_settings_hash()


def _dynamo_settings_hash() -> int:
    """As Dynamo's own hash, without what a call of a compiled function sets."""
    from torch._dynamo import config

    settings = config.get_config_copy()  # its attributes may be deprecated, and warn
    named = sorted(settings.keys() - _SET_BY_CALLS)
    return hash(repr([(name, settings[name]) for name in named]))


def leaves_of_backward() -> list[torch.Tensor]:
    """The leaf tensors to which the autograd node that runs now passes gradients."""
    node = torch._C._current_autograd_node()
    following = node.next_functions if node is not None else ()
    leaves = (getattr(each, "variable", None) for each, _ in following)
    return [leaf for leaf in leaves if leaf is not None]


def backward_ahead() -> Any:
    """Compiles a backward graph with its forward, not at its first run."""
    from torch._functorch import config

    return config.patch(force_non_lazy_backward_lowering=True)


def cache_folder() -> str:
    """The folder of Inductor's generated code."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return str(cache_dir())


def prepare_for_threads(*, inductor: bool) -> None:
    """Imports the compiler in the thread that creates a model, not in a compile thread.

    There the import would count against the deadline, and an interrupted import leaves
    modules half loaded. Raises `MissingHook` if torch lacks a hook of the runtime.
    """
    with collector_paused():
        contract.require("compile")
        if inductor:
            contract.require("compile with Inductor")
    # Without a device, a CUDA build of torch 2.11 keeps an object of the first thread
    # that traces, and crashes after that thread has ended.
    torch._C._ensureCUDADeviceGuardSet()
    if torch.cuda.is_available():
        importlib.import_module("torch._inductor.cudagraph_trees")
