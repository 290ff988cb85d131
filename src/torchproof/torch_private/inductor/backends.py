"""Graph compilers as torch.compile would use them, with a say in each backward."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from torchproof.torch_private.dynamo.switches import graph_compiler

PROBES: dict[str, tuple[str, ...]] = {
    "Inductor's compiler of one graph": (
        "torch._inductor.compile_fx:compile_fx",
        "torch._inductor.compile_fx:compile_fx_inner",
        "torch:_TorchCompileInductorWrapper.apply_options",
        "torch._inductor.output_code:CompiledFxGraph.current_callable",
    ),
    "what a graph changes": (
        "torch._functorch._aot_autograd.runtime_wrappers:RuntimeWrapper.post_compile",
        "torch._functorch._aot_autograd.schemas:ViewAndMutationMeta.input_info",
        "torch._functorch._aot_autograd.schemas:InputAliasInfo.mutates_data",
        "torch._functorch._aot_autograd.schemas:InputAliasInfo.mutates_metadata",
    ),
    "threads that run compilers": (
        "torch._inductor.async_compile:AsyncCompile.pool.cache_info",
    ),
    "the folder of Inductor's cache": (
        "torch._inductor.runtime.cache_dir_utils:cache_dir",
    ),
    "a device guard without devices": ("torch._C:_ensureCUDADeviceGuardSet",),
    "requests to trace again": ("torch._dynamo.exc:RestartAnalysis",),
    "backwards compiled ahead": (
        "torch._functorch.config:force_non_lazy_backward_lowering",
    ),
}

_noted: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar(
    "torchproof_noted", default=None
)


Backward = Callable[[Callable[[], Any], Callable[..., Any]], Any]


def compiler(arguments: Mapping[str, Any]) -> Callable[[Any, Any, Backward], Any]:
    """The backend that these arguments of torch.compile name.

    It is called with a graph, its inputs and a function `backward(compile, eager)`
    that Inductor asks for each backward graph: the one compiles it, the other runs it
    as it is.
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
    """Puts something around the first run of a graph that Inductor compiled.

    `wrap` gets what runs, and gives what runs once and who knows what runs after that.
    """
    run = getattr(compiled, "current_callable", None)
    if run is None:
        return
    once, afterwards = wrap(run)

    def first(args: Any) -> Any:
        try:
            return once(args)
        finally:
            compiled.current_callable = afterwards()

    compiled.current_callable = first


def _boxed(graph: Any) -> Callable[..., Any]:
    def run(args: list[Any]) -> Any:
        inputs = tuple(args)
        args.clear()  # as compiled code does: its caller must not keep them alive
        with torch.no_grad():
            return graph(*inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@contextlib.contextmanager
def noting_changes(inputs: int) -> Iterator[Callable[[], list[int] | None]]:
    """Which inputs the graph compiled inside writes to; None if that is not known.

    Known whether AOTAutograd compiles the graph or finds it in its cache. `inputs` is
    how many the graph has.
    """
    _note_runtime_metadata()
    noted: list[Any] = []
    token = _noted.set(noted)
    try:
        yield lambda: _changed(noted[-1].input_info, inputs) if noted else None
    finally:
        _noted.reset(token)


def _changed(noted: Sequence[Any], inputs: int) -> list[int] | None:
    if len(noted) != inputs:
        return None  # those that share memory became one, and the numbers are others
    return [
        number
        for number, info in enumerate(noted)
        if info.mutates_data or info.mutates_metadata
    ]


@functools.cache
def _note_runtime_metadata() -> None:
    """Stays in place, for every thread; it acts only where someone takes notes."""
    home = "torch._functorch._aot_autograd.runtime_wrappers"
    wrappers = importlib.import_module(home)
    original = wrappers.RuntimeWrapper.post_compile

    @functools.wraps(original)
    def post_compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        noted = _noted.get()
        if noted is not None and "runtime_metadata" in kwargs:
            noted.append(kwargs["runtime_metadata"])
        return original(self, *args, **kwargs)

    wrappers.RuntimeWrapper.post_compile = post_compile


def asks_to_trace_again(error: Exception) -> bool:
    """Whether it is no failure, but Dynamo's way to start over with what it learned."""
    from torch._dynamo.exc import RestartAnalysis

    return isinstance(error, RestartAnalysis)


def backward_ahead() -> Any:
    """A backward graph is compiled with its forward, not when it first runs."""
    from torch._functorch import config

    return config.patch(force_non_lazy_backward_lowering=True)


def uses_eager_random() -> bool:
    """Whether compiled code draws the random numbers that eager would draw."""
    from torch._inductor import config

    return bool(config.fallback_random)


def pool_threads() -> list[int]:
    """The threads in which Inductor runs compilers, besides the one that compiles."""
    from torch._inductor.async_compile import AsyncCompile

    if not AsyncCompile.pool.cache_info().currsize:
        return []
    return [thread.ident or 0 for thread in AsyncCompile.pool()._threads]


def cache_folder() -> str:
    """Where Inductor keeps what it generates."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return str(cache_dir())


def prepare_for_threads(*, inductor: bool) -> None:
    """Loads what is better loaded in the thread that makes a model than in a helper.

    A deadline would count it, and an interrupted import leaves modules half loaded.
    """
    importlib.import_module("torch._dynamo")
    if inductor:
        importlib.import_module("torch._inductor.compile_fx")
    # Where a CUDA build finds no device, torch 2.11 remembers an object that belongs to
    # the first thread that traces, and crashes once that thread has ended.
    torch._C._ensureCUDADeviceGuardSet()
    if torch.cuda.is_available():
        importlib.import_module("torch._inductor.cudagraph_trees")
