"""Switches that restrict the compiler in one way, to test what causes a difference."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchproof.records import COMPREHENSIONS, Keywords
from torchproof.torch_private.hooks import patched

GUARD_FILTER = "guard_filter_fn"  # the option of torch.compile that Dynamo takes


def graph_compiler(arguments: Keywords) -> Callable[..., Any]:
    """The backend that torch.compile with these arguments would use."""
    options = arguments.get("options") and dict(arguments["options"])
    if options:
        options.pop(GUARD_FILTER, None)  # is for Dynamo
    settings = [arguments.get("mode"), options, arguments.get("dynamic")]
    backend = arguments.get("backend") or "inductor"
    if backend == "inductor":
        named = [arguments["name"]] if "name" in arguments else []
        return torch._TorchCompileInductorWrapper(*settings, *named)
    return torch._TorchCompileWrapper(backend, *settings)


def default_backend() -> Any:
    """The backend that torch.compile uses if it is given none."""
    registry = sys.modules.get("torch._dynamo.backends.registry")
    # Since torch 2.13 it can be set, which loads this module.
    default = getattr(registry, "get_default_backend", lambda: "inductor")
    return default()


def skip_frame_of(function: Callable[..., Any]) -> None:
    """Makes Dynamo run a function in Python; what it calls is compiled.

    Before Python 3.12, a comprehension is a function of its own.
    """
    skip = importlib.import_module("torch._dynamo.decorators").skip
    frames = importlib.import_module("torch._dynamo.eval_frame")
    pending = list(skip(function).__code__.co_consts)
    while pending:
        code = pending.pop()
        if isinstance(code, types.CodeType) and code.co_name in COMPREHENSIONS:
            frames.skip_code(code)
            pending += code.co_consts


def folds_weights() -> bool:
    """Whether Inductor treats weights as constants (freezing)."""
    return bool(importlib.import_module("torch._inductor.config").freezing)


def guard_module_hooks() -> contextlib.AbstractContextManager[None]:
    """Makes compiled code guard on the hooks of its modules."""
    config = importlib.import_module("torch._dynamo.config")
    return config.patch(skip_nnmodule_hook_guards=False)


@contextlib.contextmanager
def no_constant_results() -> Iterator[None]:
    """Makes assume_constant_result do nothing for functions defined in this context."""
    dynamo = importlib.import_module("torch._dynamo")
    with patched(dynamo, "assume_constant_result", lambda fn: fn):
        yield


@contextlib.contextmanager
def constant_results(note: Callable[[Any], None]) -> Iterator[None]:
    """Calls `note(function)` for each call whose result is assumed constant."""
    functions = importlib.import_module("torch._dynamo.variables.functions")
    modules = importlib.import_module("torch._dynamo.variables.nn_module")
    original = functions.invoke_and_store_as_constant

    @functools.wraps(original)
    def store(tx: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        note(fn)
        return original(tx, fn, *args, **kwargs)

    with (
        patched(functions, "invoke_and_store_as_constant", store),
        patched(modules, "invoke_and_store_as_constant", store),
    ):
        yield


@contextlib.contextmanager
def pretend_compiling() -> Iterator[None]:
    """Makes `is_compiling()` and `is_dynamo_compiling()` return True in eager code."""
    is_compiling = torch.compiler.is_dynamo_compiling
    assert isinstance(is_compiling, types.FunctionType)
    code = is_compiling.__code__
    is_compiling.__code__ = _yes.__code__  # also affects code that imported it by name
    try:
        with patched(torch.compiler, "_is_compiling_flag", True):
            yield
    finally:
        is_compiling.__code__ = code


def _yes() -> bool:
    return True


def operator_name(operator: Any) -> str | None:
    """The name of an operator, such as `lib::scale`; None for a plain function."""
    schema = getattr(getattr(operator, "default", operator), "_schema", None)
    return str(schema.name) if schema is not None else None


def unmutated_arguments(operator: Any) -> dict[int, str]:
    """The arguments, by position, that a custom operator declares not to mutate.

    Empty for torch's own functions and operators.
    """
    operator = getattr(operator, "default", operator)  # the default overload
    schema = getattr(operator, "_schema", None)
    if schema is None or operator.namespace in {"aten", "prims", "prim"}:
        return {}
    arguments = enumerate(schema.arguments)
    return {position: each.name for position, each in arguments if not each.is_write}
