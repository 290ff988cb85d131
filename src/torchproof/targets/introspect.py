"""Reads names, code objects and stack frames of live Python objects."""

from __future__ import annotations

import inspect
import os
import sys
import types
from pathlib import Path
from typing import Any

from torchproof.records import Frame, JsonObject


def stack() -> tuple[Frame, ...]:
    """The Python stack without torchproof's own frames, outermost first."""
    frames: list[Frame] = []
    frame = sys._getframe(1)
    package = str(Path(__file__).parent.parent) + os.sep
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(package) or "workloads" in code.co_filename:
            frames.append(Frame(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(reversed(frames))


def compiler_stack() -> list[JsonObject]:
    """The complete Python stack above Dynamo, in the format of a trace record."""
    frames: list[JsonObject] = []
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if Path(code.co_filename).as_posix().endswith("torch/_dynamo/convert_frame.py"):
            frames.clear()
        else:
            where = {"filename": code.co_filename, "line": frame.f_lineno}
            frames.append({**where, "name": code.co_name})
        frame = frame.f_back  # type: ignore[assignment]
    return frames[::-1]


def called_by_torch() -> bool:
    """Whether torch itself calls torch.compile, as its higher-order operators do.

    Module.compile and the decorator with arguments also call it from torch, but on
    behalf of the user.
    """
    frames = stack()
    caller = Path(frames[-1].file).as_posix() if frames else ""
    by_user = caller.endswith(("/torch/__init__.py", "/torch/nn/modules/module.py"))
    return "/site-packages/torch/" in caller and not by_user


def plain(frames: Any) -> list[list[Any]]:
    return [[f.file, f.line, f.function] for f in frames]


def frame_of(code: types.CodeType) -> Frame:
    return Frame(code.co_filename, code.co_firstlineno, code.co_name)


def code_of(model: Any) -> types.CodeType | None:
    """The code of the innermost function, below all decorators."""
    return getattr(_layers(model)[-1], "__code__", None)


def codes_around(model: Any) -> list[types.CodeType]:
    """The code of each decorator around it. Dynamo may compile any of them."""
    codes = [getattr(layer, "__code__", None) for layer in _layers(model)[:-1]]
    return [code for code in codes if code is not None]


def _layers(model: Any) -> list[Any]:
    """The functions that a call of the model runs, outermost decorator first."""
    owner = getattr(model, "__self__", None)
    if getattr(model, "__name__", "") == "_call_impl" and owner is not None:
        model = owner  # Module.compile() passes the bound `_call_impl` of the module
    function = (
        getattr(type(model), "forward", model)
        if hasattr(model, "parameters")
        else model
    )
    if not isinstance(function, (types.FunctionType, types.MethodType)):
        # An object with `__call__`; a callable written in C has no code.
        function = getattr(function, "__wrapped__", type(function).__call__)
    layers = [function]
    while hasattr(layers[-1], "__wrapped__"):
        layers.append(layers[-1].__wrapped__)
    return layers


def forwards(model: Any, code: types.CodeType) -> list[tuple[str, str]]:
    """File and qualified name of `code`, and of the forward of each submodule class."""
    modules = getattr(getattr(model, "__self__", model), "modules", None)
    codes = {code: None}
    for kind in {type(part) for part in modules()} if callable(modules) else ():
        # Read attributes of plain functions only: other objects may run any code.
        forward = inspect.getattr_static(kind, "forward", None)
        if isinstance(forward, types.FunctionType):
            codes[inspect.unwrap(forward).__code__] = None
    return sorted((each.co_filename, each.co_qualname) for each in codes)


def name_of(model: Any) -> str:
    if hasattr(model, "parameters"):
        return type(model).__name__
    if getattr(model, "__name__", "") == "_call_impl":
        return type(model.__self__).__name__
    return str(getattr(model, "__qualname__", type(model).__name__)).replace(
        "<locals>.", ""
    )


def what(model: Any) -> str:
    is_module = (
        hasattr(model, "parameters") or getattr(model, "__name__", "") == "_call_impl"
    )
    return "module" if is_module else "function"
