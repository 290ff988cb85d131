"""Python data that a function computes from Python objects, for compiled code.

Dynamo traces the data as constants, and guards them through a module: the value of its
attribute `result_0` is computed whenever the attribute is read. A guard reads it before
each call, so compiled code runs only with the data it was compiled for.
"""

from __future__ import annotations

import ast
import enum
import math
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchproof import torch_private
from torchproof.runtime.operator_arguments import as_object, packed, unpacked

_MOST_GONE = 2  # calls with objects of their own, after which none is compiled for
_UNFIT = ""  # in place of a result that is not data


def host_value(function: Callable[..., Any], /, *arguments: Any) -> Any:
    """Calls a function that computes Python data, without a graph break.

    The data are numbers, texts, None, and new tuples, lists and dictionaries of those.
    Compiled code calls the function before each call, and is compiled again if the data
    are others. The function must change nothing, and must not need what compiled code
    changes, other than its arguments. If it returns anything else, or if compiled code
    has changed an argument, or if one is of a subclass of these types, as a named
    tuple, there is a graph break as without `host_value`.
    """
    if not torch.compiler.is_dynamo_compiling():
        return function(*arguments)
    kinds = [type(each).__name__ for each in arguments]
    form = " ".join([as_object(function), *kinds])
    if not _is_steady(form) or not _can_be_packed(arguments):
        return function(*arguments)
    tensors, integers, floats, layout = packed([function, *arguments], as_object)
    if tensors:
        return function(*arguments)
    name = _registered(
        form,
        layout,
        tuple([operator.index(each) for each in integers]),
        tuple([_constant(each) for each in floats]),
    )
    text = getattr(_RESULTS, name) if name else _UNFIT
    return _built(_described(text)) if text else function(*arguments)


def is_data(value: Any) -> bool:
    """Whether a value is Python data, in which no list or dictionary occurs twice."""
    mutable: list[int] = []
    for part in _parts(value):
        if type(part) in (list, dict):
            mutable.append(id(part))
        elif type(part) is float:
            if not math.isfinite(part):
                return False
        elif type(part) not in (tuple, bool, int, str, type(None)):
            return False
    return len(set(mutable)) == len(mutable)


def _parts(value: Any) -> Iterator[Any]:
    yield value
    if type(value) is dict:
        for key, part in value.items():
            yield from _parts(key)
            yield from _parts(part)
    elif type(value) in (list, tuple):
        for part in value:
            yield from _parts(part)


# -- while tracing ---------------------------------------------------------------------


def _can_be_packed(value: Any) -> bool:
    """Whether the function gets the same: a packed value has no type of its own."""
    kind = type(value)
    if kind is dict:
        parts = [part for pair in value.items() for part in pair]
        return all(_can_be_packed(part) for part in parts)
    if kind in (tuple, list, torch.Size):
        return all(_can_be_packed(part) for part in value)
    if kind is str:
        return "\0" not in value
    plain = (str, int, float, tuple, list, dict)
    return (
        kind in (bool, int, float)
        or isinstance(value, enum.Enum)
        or not isinstance(value, plain)
    )


@dataclass(frozen=True)
class _Call:
    """A function and its arguments, as `operator_arguments` packs them."""

    form: str  # the function and the types of the arguments
    layout: str
    integers: tuple[int, ...]
    floats: tuple[float, ...]

    def values(self) -> list[Any]:
        """The function and the arguments; raises RuntimeError if one is gone."""
        return unpacked((), self.integers, self.floats, self.layout)

    def is_gone(self) -> bool:
        try:
            self.values()
        except RuntimeError:
            return True
        return False


_CALLS: list[_Call] = []
_REPEATED: set[int] = set()  # indices of calls that compiled code has made again


def _constant(number: float) -> float:
    """The number, which Dynamo guards: the key of a dictionary is no symbol."""
    [same] = {number: None}
    return same


@torch.compiler.assume_constant_result
def _is_steady(form: str) -> bool:
    """Whether objects live longer than a call, so that guarding them is of use."""
    once = [c for i, c in enumerate(_CALLS) if i not in _REPEATED]
    dead = [each for each in once if each.form == form and each.is_gone()]
    return len(dead) < _MOST_GONE


@torch.compiler.assume_constant_result
def _registered(
    form: str, layout: str, integers: tuple[int, ...], floats: tuple[float, ...]
) -> str:
    """The name of the result; none if the arguments are not as they will be."""
    call = _Call(form, layout, integers, floats)
    if _containers(call.values()) & torch_private.changed_objects():
        return ""
    if call not in _CALLS:
        _CALLS.append(call)
    return f"result_{_CALLS.index(call)}"


@torch.compiler.assume_constant_result
def _described(text: str) -> tuple[str, Any]:
    return _description(ast.literal_eval(text))


def _description(value: Any) -> tuple[str, Any]:
    """The value in tuples: Dynamo does not trace other containers that are constant."""
    if type(value) is dict:
        pairs = [(_description(k), _description(v)) for k, v in value.items()]
        return "dict", tuple(pairs)
    if type(value) in (list, tuple):
        return type(value).__name__, tuple(map(_description, value))
    return "", value


def _built(description: tuple[str, Any]) -> Any:
    """The described value, with containers of its own."""
    kind, inside = description
    if kind == "dict":
        return {_built(key): _built(part) for key, part in inside}
    if kind:
        parts = [_built(part) for part in inside]
        return tuple(parts) if kind == "tuple" else parts
    return inside


# -- whenever a guard reads the result -------------------------------------------------


class _Results(types.ModuleType):
    """A module, because Dynamo guards the attributes of modules as they are read."""

    def __getattr__(self, name: str) -> str:
        _, is_result, index = name.rpartition("result_")
        if not is_result:
            raise AttributeError(name)
        try:
            function, *arguments = _CALLS[int(index)].values()
        except RuntimeError:
            raise AttributeError(name) from None  # the guard fails
        if not torch_private.is_compiling_a_frame():
            _REPEATED.add(int(index))
        return _text(function, arguments)


_RESULTS = _Results("results")


def _text(function: Callable[..., Any], arguments: Sequence[Any]) -> str:
    try:
        value = function(*arguments)
        shared = _containers(arguments) & _containers(value)
        return _UNFIT if shared or not is_data(value) else repr(value)
    except Exception:  # compiled code calls the function itself, and raises it
        return _UNFIT


def _containers(value: Any) -> set[int]:
    """The ids of the objects that can change, in a value and its objects."""
    return {
        id(part)
        for _, part in torch_private.trees.walk(value, objects=True)
        if not isinstance(part, (str, int, float, tuple, type(None)))
    }
