"""Records the arguments with which a running program calls a compiled function.

When Dynamo is about to compile a frame, `entry_call` finds the call that entered the
compiled region, and matches the frame's local variables with its arguments.
"""

from __future__ import annotations

import enum
import hashlib
import inspect
import itertools
import sys
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchproof import torch_private
from torchproof.records import CALLEE, JsonObject, Keywords, Namespace, Path, whose

_DEPTH = 3
_MOST_ITEMS = 64  # a longer container is not searched
_LONGEST_FORM = 200  # characters
_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_tensors: list[Any] = []  # the numbers of the tensors seen, once torch is there
_count = itertools.count()
# The values of these types may be one object, so that identity says nothing.
_SHARED = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type)


def entry_call(variables: Keywords, code: types.CodeType) -> JsonObject:
    """The call that entered the compiled region, as a record for `records.Call`.

    `variables` and `code` are those of the frame that is about to be compiled.
    """
    entry = entry_frame()
    if entry is None:
        return {}
    args = entry.f_locals.get("args", ())
    kwargs = entry.f_locals.get("kwargs", {})
    values = dict(_walk(("args",), args)) | dict(_walk(("kwargs",), kwargs))
    caller: types.FrameType | None = entry.f_back
    while caller is not None and whose(caller.f_code.co_filename) == "torch":
        caller = caller.f_back
    return {
        "entry": _number_of(entry.f_locals.get("self")),
        "site": None if caller is None else _site(caller),
        "positional": len(args),
        "sources": [
            *_sources(variables, code, values, is_entry=_calls_directly(entry)),
            *_callee(variables, entry.f_locals.get("fn")),
        ],
        "sizes": [[path, list(v.shape)] for path, v in values.items() if _sized(v)],
        "tensors": [[path, _tensor(v)] for path, v in values.items() if _sized(v)],
    }


def entry_arguments() -> tuple[tuple[Any, ...], Namespace]:
    """The arguments of the call that entered the compiled region."""
    entry = entry_frame()
    variables: Keywords = {} if entry is None else entry.f_locals
    return variables.get("args", ()), variables.get("kwargs", {})


def form_of(args: Sequence[Any], kwargs: Keywords) -> str:
    """The form of arguments: `float32[4, 8], 3, mask=bool[4]`.

    It has the sizes and types of tensors and the values of integers, since those decide
    what is compiled; of other values only the type.
    """
    parts = [*map(_form, args), *(f"{k}={_form(v)}" for k, v in kwargs.items())]
    text = ", ".join(parts)
    if len(text) <= _LONGEST_FORM:
        return text
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]
    return f"{text[:_LONGEST_FORM]} ... {digest}"


def _form(value: Any, depth: int = _DEPTH) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        try:
            sizes = ", ".join(map(str, value.shape))
        except Exception:  # a nested tensor has none; a subclass may raise anything
            return type(value).__name__
        return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
    if type(value) in (bool, int) or value is None:
        return repr(value)
    if depth and type(value) in (list, tuple) and len(value) <= _MOST_ITEMS:
        return f"({', '.join(_form(each, depth - 1) for each in value)})"
    if depth and type(value) is dict and len(value) <= _MOST_ITEMS:
        items = (f"{key}={_form(each, depth - 1)}" for key, each in value.items())
        return f"({', '.join(items)})"
    return type(value).__name__


def entry_frame() -> types.FrameType | None:
    """The frame of torch's wrapper around the outermost compiled callable.

    `split_region` splits a stack at the same frame.
    """
    entry = None
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith("eval_frame.py"):
            if (
                frame.f_code.co_name == "_fn"
                and whose(frame.f_code.co_filename) == "torch"
            ):
                break
            if frame.f_code.co_name == "compile_wrapper":
                entry = frame
        frame = frame.f_back
    return entry


def _calls_directly(entry: types.FrameType) -> bool:
    """Whether the entry calls what is about to be compiled, with torch between."""
    frame = sys._getframe(1)
    while frame is not entry and frame.f_back is not None:
        if whose(frame.f_code.co_filename) in ("user", "library"):
            return False
        frame = frame.f_back
    return True


def _number_of(context: Any) -> int:
    """A unique number for each call of torch.compile; an id could be reused."""
    if context not in _numbers:
        _numbers[context] = next(_count)
    return _numbers[context]


def _tensor(tensor: Any) -> int:
    """A unique number for each tensor, whose id could be reused."""
    from torch.utils.weak import WeakIdKeyDictionary

    if not _tensors:
        _tensors.append(WeakIdKeyDictionary())
    return int(_tensors[0].setdefault(tensor, next(_count)))


def _site(frame: types.FrameType) -> list[Any]:
    positions = list(frame.f_code.co_positions())
    spot = positions[frame.f_lasti // 2] if frame.f_lasti >= 0 else (None,) * 4
    return [frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, list(spot)]


def _sized(value: Any) -> bool:
    """Whether the value is a tensor with integer sizes; traced tensors have symbols."""
    import torch

    is_tensor = isinstance(value, torch.Tensor)
    return is_tensor and all(isinstance(size, int) for size in value.shape)


def _walk(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """Each argument, and each item of containers among them."""
    if len(path) > 1:
        yield path, value
    if len(path) <= _DEPTH:
        for key, item in _items(value):
            yield from _walk((*path, key), item)


def _items(value: Any) -> list[tuple[Any, Any]]:
    items = [
        (part.key, part.value)
        for part in torch_private.trees.parts(value)
        if part.is_item and isinstance(part.key, (str, int))
    ]
    return items if len(items) <= _MOST_ITEMS else []


def _sources(
    variables: Keywords,
    code: types.CodeType,
    values: Mapping[Path, Any],
    *,
    is_entry: bool,
) -> list[list[Any]]:
    """The argument that each local variable is, or each item of `*args`, `**kwargs`.

    Only a function that the call enters itself gets values without identity from it.
    """
    by_identity = {
        id(value): path
        for path, value in reversed(list(values.items()))
        if not _is_shared(value)
    }
    sources: list[list[Any]] = []
    for name, value in variables.items():
        path = by_identity.get(id(value))
        if is_entry or not _is_shared(value):
            path = _by_position(name, variables, code, values) or path
        if path is not None:
            sources.append([name, [], path])
            continue
        packed = _packed(code).get(name)
        if packed is not None:
            sources.append([name, [], (packed,)])
        # Arguments before `*args` are bound to other parameters.
        bound = sum(path[0] == "args" and len(path) == 2 for path in values)
        before = bound - len(value) if packed == "args" else 0
        for key, item in _items(value):
            path = (packed, before + key if packed == "args" else key)
            if path not in values or values[path] is not item:
                path = by_identity.get(id(item))
            if path is not None:
                sources.append([name, [key], path])
    return sources


def _is_shared(value: Any) -> bool:
    """Whether equal values are one object, so that identity shows no origin."""
    is_empty = isinstance(value, tuple | frozenset) and not value
    of_torch = type(value).__name__ in ("dtype", "layout", "memory_format")
    return is_empty or of_torch or isinstance(value, (*_SHARED, enum.Enum))


def _callee(variables: Keywords, fn: Any) -> list[list[Any]]:
    """The local variables that refer to the called module."""
    if getattr(fn, "__name__", "") not in ("_wrapped_call_impl", "_call_impl"):
        return []
    module = getattr(fn, "__self__", None)
    return [[n, [], CALLEE] for n, value in variables.items() if value is module]


def _packed(code: types.CodeType) -> dict[str, str]:
    """The names of the `*args` and `**kwargs` parameters of a function."""
    named = code.co_argcount + code.co_kwonlyargcount
    packed: dict[str, str] = {}
    for flag, kind in (
        (inspect.CO_VARARGS, "args"),
        (inspect.CO_VARKEYWORDS, "kwargs"),
    ):
        if code.co_flags & flag:
            packed[code.co_varnames[named + len(packed)]] = kind
    return packed


def _by_position(
    name: str,
    variables: Keywords,
    code: types.CodeType,
    values: Mapping[Path, Any],
) -> Path | None:
    """The argument by the parameter's name or position, for values without identity."""
    parameters = code.co_varnames[: code.co_argcount]
    path: Path = ("kwargs", name)
    if path not in values and name in parameters:
        first = variables.get(parameters[0])
        bound = ("args", 0) not in values or values["args", 0] is not first
        path = ("args", parameters.index(name) - bound)
    return path if path in values and values[path] is variables[name] else None
