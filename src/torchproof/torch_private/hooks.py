"""The basic hooks into Dynamo.

Each hook is a context manager that restores what it patches.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
from collections.abc import Callable, Iterable, Iterator
from traceback import FrameSummary, StackSummary
from types import CodeType
from typing import Any, NamedTuple

import torch

from torchproof.records import JsonObject, original_name


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


class _Handler(logging.Handler):
    def __init__(self, receive: Callable[[JsonObject, str], None]) -> None:
        super().__init__()
        self._receive = receive

    def emit(self, record: logging.LogRecord) -> None:
        payload = getattr(record, "payload", None)
        self._receive(record.metadata, "" if payload is None else payload)  # type: ignore[attr-defined]


@contextlib.contextmanager
def trace_records(receive: Callable[[JsonObject, str], None]) -> Iterator[None]:
    """Calls `receive(metadata, payload)` for every record of the structured trace.

    Torch writes each file name once and refers to it by number afterwards. So the names
    that it has written before are passed to `receive` first.
    """
    log = importlib.import_module("torch._logging._internal").trace_log
    interned = importlib.import_module("torch._logging.structured").INTERN_TABLE
    for text, number in interned.items():
        receive({"str": [text, number]}, "")
    handler = _Handler(receive)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


@contextlib.contextmanager
def compiled_contexts(
    register: Callable[[Any], Callable[[], Callable[[], None]] | None],
) -> Iterator[None]:
    """Calls `register(context)` for each context that torch.compile creates.

    `register` returns a function that is called when a call of the compiled function
    begins. That function returns another, which is called when the call ends.
    """
    eval_frame = importlib.import_module("torch._dynamo.eval_frame")
    original = eval_frame.OptimizeContext.__init__

    @functools.wraps(original)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        enter = register(self)
        if enter is not None:
            self.enter_exit_hooks.append(enter)

    with patched(eval_frame.OptimizeContext, "__init__", initialise):
        yield


class FrameRequest(NamedTuple):
    """A frame that Dynamo is about to compile."""

    frame: Any
    fullgraph: bool
    is_recompile: bool  # compiled code exists, but its guards fail for this call


@contextlib.contextmanager
def frame_callbacks(
    wrap: Callable[[Callable[[], Any], FrameRequest], Any],
) -> Iterator[None]:
    """Calls `wrap(convert, request)` instead of converting a frame."""
    convert_frame = importlib.import_module("torch._dynamo.convert_frame")
    original = convert_frame.CatchErrorsWrapper.__call__

    @functools.wraps(original)
    def convert(self: Any, frame: Any, cache_entry: Any, *args: Any) -> Any:
        inner = self._torchdynamo_orig_backend
        fullgraph = isinstance(inner, convert_frame.ConvertFrameAssert)
        request = FrameRequest(frame, fullgraph, cache_entry is not None)
        return wrap(lambda: original(self, frame, cache_entry, *args), request)

    with patched(convert_frame.CatchErrorsWrapper, "__call__", convert):
        yield


def skip_once() -> Any:
    """Dynamo's answer to run this frame in eager mode, this time only."""
    types = importlib.import_module("torch._dynamo.types")
    return types.ConvertFrameReturn(apply_to_code=False)


def was_skipped(answer: Any) -> bool:
    """Whether Dynamo's answer is to skip this frame, now and later."""
    types = importlib.import_module("torch._dynamo.types")
    strategy = answer.frame_exec_strategy
    return answer.guarded_code is None and strategy.cur_action == types.FrameAction.SKIP


def marked_dimensions(tensor: Any) -> list[int]:
    """The dimensions that are marked with mark_dynamic or maybe_mark_dynamic."""
    marks = ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices")
    return sorted({d for name in marks for d in getattr(tensor, name, ())})


def mark_unbacked(tensor: torch.Tensor, dimension: int, *, shape_id: str) -> None:
    """Marks a size as unbacked, so that 0 and 1 are not specialised.

    Dimensions with the same `shape_id` have the same size in a call.
    """
    decorators = importlib.import_module("torch._dynamo.decorators")
    decorators.mark_unbacked(tensor, dimension, shape_id=shape_id)


def mark_weakly_dynamic(tensor: torch.Tensor, dimension: int) -> None:
    """Marks a size as dynamic, unless the traced code specialises it."""
    decorators = importlib.import_module("torch._dynamo.decorators")
    decorators.maybe_mark_dynamic(tensor, dimension)


@contextlib.contextmanager
def graph_callables(
    wrap: Callable[[Any, Callable[..., Any]], Callable[..., Any]],
) -> Iterator[None]:
    """Replaces each compiled graph by `wrap(output_graph, compiled)`."""
    output_graph = importlib.import_module("torch._dynamo.output_graph")
    original = output_graph.OutputGraph._call_user_compiler

    @functools.wraps(original)
    def compile_graph(self: Any, gm: Any, *args: Any, **kwargs: Any) -> Any:
        return wrap(self, original(self, gm, *args, **kwargs))

    with patched(output_graph.OutputGraph, "_call_user_compiler", compile_graph):
        yield


@contextlib.contextmanager
def captured_graphs(note: Callable[[str, Any], None]) -> Iterator[None]:
    """Calls `note(compile_id, graph)` for each graph, before the backend gets it."""
    output_graph = importlib.import_module("torch._dynamo.output_graph")
    original = output_graph.OutputGraph._call_user_compiler

    @functools.wraps(original)
    def compile_graph(self: Any, gm: Any, *args: Any, **kwargs: Any) -> Any:
        note(compile_id_of(self), gm)
        return original(self, gm, *args, **kwargs)

    with patched(output_graph.OutputGraph, "_call_user_compiler", compile_graph):
        yield


def graphs_without_source_lines() -> contextlib.AbstractContextManager[None]:
    """What is compiled meanwhile does not say from which lines it comes."""
    return captured_graphs(lambda _, graph: remove_source_lines(graph))


def remove_source_lines(graph: torch.fx.GraphModule) -> None:
    """Inductor copies the place of each node, folder and source, into its code."""
    for module in graph.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.pop("stack_trace", None)


def compile_id_of(output_graph: Any) -> str:
    return str(output_graph.dynamo_compile_id)


@contextlib.contextmanager
def inlined_code(note: Callable[[CodeType], None]) -> Iterator[None]:
    """Calls `note(code)` for each function that Dynamo inlines while tracing."""
    symbolic = importlib.import_module("torch._dynamo.symbolic_convert")
    owner = symbolic.InliningInstructionTranslator
    original = owner.__dict__["inline_call"].__func__

    @functools.wraps(original)
    def inline(cls: Any, parent: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        note(func.get_code())
        return original(cls, parent, func, *args, **kwargs)

    with patched(owner, "inline_call", classmethod(inline)):
        yield


@contextlib.contextmanager
def whole_break_stacks() -> Iterator[None]:
    """Keeps the callers of functions with the same name in the stack of a graph break.

    Torch merges a function with its resume functions by name alone, and so drops the
    forward of a module that calls the forward of another.
    """
    symbolic = importlib.import_module("torch._dynamo.symbolic_convert")
    with patched(symbolic, "collapse_resume_frames", _merge_resumed):
        yield


def _merge_resumed(stack: Iterable[FrameSummary]) -> StackSummary:
    merged: list[FrameSummary] = []
    for frame in stack:
        name = original_name(frame.name)
        if name != frame.name and merged:
            caller = merged[-1]
            if (caller.filename, caller.name) == (frame.filename, name):
                merged.pop()
        frame.name = name
        merged.append(frame)
    return StackSummary.from_list(merged)


@contextlib.contextmanager
def module_methods(wrap: Callable[[Any, str, Any], Any]) -> Iterator[None]:
    """Calls `wrap(module, name, value)` for attributes read from the original module.

    A compiled module reads them when it does not have them itself.
    """
    eval_frame = importlib.import_module("torch._dynamo.eval_frame")

    def get(self: Any, name: str) -> Any:
        # Dynamo inlines this function in place of torch's own. So it does the same, and
        # tracing removes the rest, because is_compiling() is True there.
        if name == "_orig_mod":
            return self._modules["_orig_mod"]
        value = getattr(self._orig_mod, name)
        return value if torch.compiler.is_compiling() else wrap(self, name, value)

    with patched(eval_frame.OptimizedModule, "__getattr__", get):
        yield


def never_compile(code: CodeType) -> None:
    """Makes Dynamo ignore all frames of this code."""
    importlib.import_module("torch._dynamo.eval_frame").skip_code(code)


def stance() -> str:
    """The current stance: default, force_eager, eager_on_recompile..."""
    return str(importlib.import_module("torch._dynamo.eval_frame")._stance.stance)


def is_dynamo_disabled() -> bool:
    return bool(importlib.import_module("torch._dynamo.config").disable)


def is_compiled(fn: Any) -> bool:
    """Whether the user has compiled a function or module already."""
    if isinstance(fn, torch.nn.Module):
        return (
            type(fn).__name__ == "OptimizedModule" or fn._compiled_call_impl is not None
        )
    return hasattr(fn, "_torchdynamo_orig_callable")


def original_of(fn: Any) -> Any:
    """The module that torch.compile wrapped; the argument itself if it wraps none."""
    return getattr(fn, "_orig_mod", fn)
