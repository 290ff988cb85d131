"""Every touch of `torch._*`, as probed hooks that restore what they patch.

torch 2.11 to 2.15. Each hook is a context manager; `PROBES` of each file names what its
hooks need, and `missing()` says in words what the installed torch no longer offers.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import pkgutil
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NamedTuple

import torch

from torchproof import torch_private

# What each hook needs, as "module:attribute.path". A test asserts that none is missing.
PROBES: dict[str, tuple[str, ...]] = {
    "structured trace": (
        "torch._logging._internal:trace_log",
        "torch._logging.structured:INTERN_TABLE",
    ),
    "calls of compiled functions": (
        "torch._dynamo.eval_frame:OptimizeContext.__init__",
        "torch._dynamo.eval_frame:_TorchDynamoContext.__init__",
    ),
    "compiled modules": ("torch._dynamo.eval_frame:OptimizedModule.__getattr__",),
    "frames Dynamo is asked to compile": (
        "torch._dynamo.convert_frame:CatchErrorsWrapper.__call__",
        "torch._dynamo.convert_frame:ConvertFrameAssert",
        "torch._dynamo.types:ConvertFrameReturn.apply_to_code",
        "torch._dynamo.types:FrameAction.SKIP",
    ),
    "graphs handed to the backend": (
        "torch._dynamo.output_graph:OutputGraph._call_user_compiler",
    ),
    "inlined functions": (
        "torch._dynamo.symbolic_convert:InliningInstructionTranslator.inline_call",
    ),
    "Inductor's entry": (
        "torch:_TorchCompileInductorWrapper.__call__",
        "torch._inductor.compile_fx:compile_fx",
    ),
    "stance": ("torch._dynamo.eval_frame:_stance.stance",),
    "switches": (
        "torch._dynamo.config:disable",
        "torch._dynamo.config:suppress_errors",
    ),
    "code to leave alone": ("torch._dynamo.eval_frame:skip_code",),
    "marks for sizes that vary": (
        "torch._dynamo.decorators:mark_unbacked",
        "torch._dynamo.decorators:maybe_mark_dynamic",
    ),
}


def every_probe() -> dict[str, tuple[str, ...]]:
    """The probes of all modules of this package and its subpackages."""
    probes = dict(PROBES)
    prefix = f"{torch_private.__name__}."
    for module in pkgutil.walk_packages(torch_private.__path__, prefix):
        if not module.ispkg:
            probes |= importlib.import_module(module.name).PROBES
    return probes


def missing() -> list[str]:
    """What the installed torch does not offer, one sentence each."""
    messages = []
    for purpose, paths in every_probe().items():
        for path in paths:
            try:
                _resolve(path)
            except (ImportError, AttributeError) as error:
                messages.append(
                    f"{purpose}: torch {torch.__version__} has no {path} ({error})"
                )
    return messages


def _resolve(path: str) -> Any:
    module, _, attributes = path.partition(":")
    value: Any = importlib.import_module(module)
    for name in attributes.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            # A dataclass field with a default factory is no class attribute.
            if name not in getattr(value, "__dataclass_fields__", {}):
                raise
            value = value.__dataclass_fields__[name]
    return value


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


class _Handler(logging.Handler):
    def __init__(self, receive: Callable[[dict[str, Any], str], None]) -> None:
        super().__init__()
        self._receive = receive

    def emit(self, record: logging.LogRecord) -> None:
        payload = getattr(record, "payload", None)
        self._receive(record.metadata, "" if payload is None else payload)  # type: ignore[attr-defined]


@contextlib.contextmanager
def trace_records(receive: Callable[[dict[str, Any], str], None]) -> Iterator[None]:
    """Every record of the structured trace, as TORCH_TRACE would write it.

    Torch names a file once and gives its number from then on: what it has named before
    is told first.
    """
    log = importlib.import_module("torch._logging._internal").trace_log
    named = importlib.import_module("torch._logging.structured").INTERN_TABLE
    for text, number in named.items():
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
    """`register(context)` for each context torch.compile makes.

    What it returns is called when a call of the compiled function begins, and what
    that returns when the call ends.
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
    """A frame Dynamo is asked to compile."""

    frame: Any
    fullgraph: bool
    is_recompile: bool  # there is compiled code for it, which does not fit this call


@contextlib.contextmanager
def frame_callbacks(
    wrap: Callable[[Callable[[], Any], FrameRequest], Any],
) -> Iterator[None]:
    """`wrap(convert, conversion)` in place of each conversion of a frame."""
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
    """Run this frame as plain Python, and ask again the next time its code runs."""
    types = importlib.import_module("torch._dynamo.types")
    return types.ConvertFrameReturn(apply_to_code=False)


def was_skipped(answer: Any) -> bool:
    """Whether a conversion answered: skip this frame, now and later."""
    types = importlib.import_module("torch._dynamo.types")
    strategy = answer.frame_exec_strategy
    return answer.guarded_code is None and strategy.cur_action == types.FrameAction.SKIP


def marked_dimensions(tensor: Any) -> list[int]:
    """The dimensions a user marked with mark_dynamic, maybe_mark_dynamic and so on."""
    marks = ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices")
    return sorted({d for name in marks for d in getattr(tensor, name, ())})


def mark_unbacked(tensor: torch.Tensor, dimension: int, *, shape_id: str) -> None:
    """0 and 1 are no special sizes here. One `shape_id`, one size in a call."""
    decorators = importlib.import_module("torch._dynamo.decorators")
    decorators.mark_unbacked(tensor, dimension, shape_id=shape_id)


def mark_weakly_dynamic(tensor: torch.Tensor, dimension: int) -> None:
    """This size may vary, as far as the traced code lets it."""
    decorators = importlib.import_module("torch._dynamo.decorators")
    decorators.maybe_mark_dynamic(tensor, dimension)


@contextlib.contextmanager
def graph_callables(
    wrap: Callable[[Any, Callable[..., Any]], Callable[..., Any]],
) -> Iterator[None]:
    """`wrap(graph_module, compiled)` for each graph, whatever the backend."""
    output_graph = importlib.import_module("torch._dynamo.output_graph")
    original = output_graph.OutputGraph._call_user_compiler

    @functools.wraps(original)
    def compile_graph(self: Any, gm: Any, *args: Any, **kwargs: Any) -> Any:
        return wrap(self, original(self, gm, *args, **kwargs))

    with patched(output_graph.OutputGraph, "_call_user_compiler", compile_graph):
        yield


def compile_id_of(output_graph: Any) -> str:
    return str(output_graph.dynamo_compile_id)


@contextlib.contextmanager
def inlined_code(note: Callable[[CodeType], None]) -> Iterator[None]:
    """`note(code)` for each function Dynamo inlines while tracing."""
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
def no_code_generation() -> Iterator[None]:
    """Inductor runs the captured graph as it is instead of compiling it."""

    def run_as_captured(self: Any, model_: Any, inputs_: Any) -> Any:
        return model_.forward

    with patched(torch._TorchCompileInductorWrapper, "__call__", run_as_captured):
        yield


@contextlib.contextmanager
def module_methods(wrap: Callable[[Any, str, Any], Any]) -> Iterator[None]:
    """`wrap(module, name, value)` for what a compiled module gets from its original."""
    eval_frame = importlib.import_module("torch._dynamo.eval_frame")

    def get(self: Any, name: str) -> Any:
        # Dynamo inlines this in place of torch's own: so it says what that says, and
        # the rest is folded away while tracing, where is_compiling() is True.
        if name == "_orig_mod":
            return self._modules["_orig_mod"]
        value = getattr(self._orig_mod, name)
        return value if torch.compiler.is_compiling() else wrap(self, name, value)

    with patched(eval_frame.OptimizedModule, "__getattr__", get):
        yield


def never_compile(code: CodeType) -> None:
    """Dynamo neither compiles nor counts frames of this code."""
    importlib.import_module("torch._dynamo.eval_frame").skip_code(code)


def stance() -> str:
    """The stance in force: default, force_eager, eager_on_recompile..."""
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
