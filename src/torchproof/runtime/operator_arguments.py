"""Arguments of Python functions as arguments of operators.

An operator takes tensors, numbers and texts. The layout, a text, says how they make up
the arguments again. Numbers are not part of it: with `dynamic=True` they are symbols
while they are traced. An object is kept here while it is traced, and has a key in the
layout.
"""

from __future__ import annotations

import ctypes
import enum
import importlib
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchproof.records import Namespace

_serial_numbers = itertools.count()
_OBJECTS: dict[str, Callable[[], Any]] = {}  # weak references by key
_SEQUENCES: dict[str, type] = {"tuple": tuple, "list": list, "Size": torch.Size}
_NAMES: Namespace = {"None": None, "True": True, "False": False}


@torch.compiler.assume_constant_result
def serial_number() -> int:
    """Another number in every call that is traced: equal calls are not merged."""
    return next(_serial_numbers)


def named(name: str) -> Any:
    """What `module:qualified.name` names; None if it cannot be found."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for word in path.split("."):
            found = getattr(found, word)
    except (ImportError, AttributeError, ValueError):  # also if the name is empty
        return None
    return found


def packed(
    values: Sequence[Any], other: Callable[[Any], str]
) -> tuple[list[Tensor], list[int], list[float], str]:
    """Tensors, integers, other numbers and the layout.

    `other` makes the entry in the layout of any other value.
    """
    tensors: list[Tensor] = []
    integers: list[int] = []
    floats: list[float] = []
    layout: list[str] = []
    for value in values:
        _pack(value, (tensors, integers, floats), layout, other)
    return tensors, integers, floats, "\0".join(layout)


def _pack(
    value: Any,
    found: tuple[list[Tensor], list[int], list[float]],
    layout: list[str],
    other: Callable[[Any], str],
) -> None:
    tensors, integers, floats = found
    inside: list[Any] = []
    if isinstance(value, Tensor):
        tensors.append(value)
        layout.append("tensor")
    elif isinstance(value, enum.Enum):  # first, because it may be a text or a number
        layout.append(f"object {_member(value)}")
    elif value is None or isinstance(value, bool):
        layout.append(f"{value}")
    elif isinstance(value, (int, torch.SymInt)):
        integers.append(value)  # type: ignore[arg-type]
        layout.append("integer")
    elif isinstance(value, (float, torch.SymFloat)):
        floats.append(value)  # type: ignore[arg-type]
        layout.append("float")
    elif isinstance(value, str):
        layout.append(f"text {value}")
    elif isinstance(value, (tuple, list)):
        layout.append(f"{type(value).__name__} {len(value)}")
        inside = list(value)
    elif isinstance(value, dict):
        layout.append(f"dict {len(value)}")
        inside = [part for pair in value.items() for part in pair]
    elif isinstance(value, torch.dtype):
        layout.append(f"dtype {value}")
    elif isinstance(value, torch.device):
        layout.append(f"device {value}")
    else:
        layout.append(other(value))
    for each in inside:
        _pack(each, found, layout, other)


def unpacked(
    tensors: Sequence[Tensor],
    integers: Sequence[int],
    floats: Sequence[float],
    layout: str,
) -> list[Any]:
    """The values in the order of the call."""
    entries = iter(layout.split("\0") if layout else ())
    values = {
        "tensor": iter(tensors),
        "integer": iter(integers),
        "float": iter(floats),
    }
    return [_unpack(entry, entries, values) for entry in entries]


def _unpack(
    entry: str, entries: Iterator[str], values: Mapping[str, Iterator[Any]]
) -> Any:
    kind, _, rest = entry.partition(" ")
    if kind in values:
        return next(values[kind])
    if kind in _SEQUENCES:
        inside = [_unpack(next(entries), entries, values) for _ in range(int(rest))]
        return _SEQUENCES[kind](inside)
    if kind == "dict":
        parts = [_unpack(next(entries), entries, values) for _ in range(2 * int(rest))]
        return dict(zip(parts[::2], parts[1::2], strict=True))
    if kind == "text":
        return rest
    if kind == "dtype":
        return getattr(torch, rest.removeprefix("torch."))
    if kind == "device":
        return torch.device(rest)
    if kind == "object":
        return _object(rest)
    return _NAMES[kind]


# -- objects: what an operator cannot take -------------------------------------------


def as_object(value: Any) -> str:
    """The entry of a function, or of an object that the program keeps alive."""
    # While tracing, `id` guards that later calls have the same object.
    return f"object {_key(id(value))}"


@torch.compiler.assume_constant_result
def _member(value: enum.Enum) -> str:
    name = f"{type(value).__module__}:{type(value).__qualname__}.{value.name}"
    return name if named(name) is value else _key(id(value))


@torch.compiler.assume_constant_result
def _key(address: int) -> str:
    """A name for the object at an address, which whoever traces keeps alive."""
    value = ctypes.cast(address, ctypes.py_object).value
    name = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"
    if named(name) is value:
        return name
    for key, reference in _OBJECTS.items():
        if reference() is value:
            return key
    key = f"{type(value).__qualname__} {len(_OBJECTS)}"
    try:
        _OBJECTS[key] = weakref.ref(value)
    except TypeError:  # of an object with slots
        _OBJECTS[key] = lambda: value
    return key


def _object(key: str) -> Any:
    value = _OBJECTS[key]() if key in _OBJECTS else named(key)
    if value is None:
        raise RuntimeError(f"{key} is not in this process, or no longer")
    return value
