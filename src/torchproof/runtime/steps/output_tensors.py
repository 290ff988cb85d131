"""Tensors in nested values: found, and copied out of the memory of CUDA graphs."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from torchproof.records import UserError


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in tuples, lists, dicts and dataclasses, however nested."""
    waiting, seen = [value], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            yield value
            continue
        parts = _parts(value)
        if parts and id(value) not in seen:  # it may hold itself
            seen.add(id(value))
            waiting += reversed(parts)


def _parts(value: Any) -> list[Any]:
    if _is_record(value):
        return [getattr(value, name) for name in _fields(value)]
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else []


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same value with `change(tensor)` in place of each tensor."""
    try:
        return _mapped(value, change)
    except RecursionError:
        raise UserError(
            f"a {type(value).__name__} holds itself, or is nested too deeply, and"
            " cannot be copied out of a step: hand on the tensors in it"
        ) from None


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if _is_record(value):
        return _record(value, change)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(item, change) for item in value))
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, change) for item in value)
    if isinstance(value, dict):
        found = copy.copy(value)
        for key, item in value.items():
            found[key] = _mapped(item, change)
        return found
    if any(
        isinstance(held, Tensor) for held in getattr(value, "__dict__", {}).values()
    ):
        # To hand it on as it is would be to keep what the next step overwrites.
        raise UserError(
            f"a {type(value).__name__} holds tensors and cannot be copied out of a"
            " step: hand its tensors on in a tuple, list, dict or dataclass"
        )
    return value


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(value: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]


def _record(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    found = copy.copy(value)
    frozen = value.__dataclass_params__.frozen
    for name in _fields(value):
        item = _mapped(getattr(value, name), change)
        if frozen:
            object.__setattr__(found, name, item)
        else:
            setattr(found, name, item)
    return found


class Copies:
    """One copy of each tensor, and none of a copy."""

    def __init__(self, made: Callable[[Tensor], None]) -> None:
        self._made = made
        # By identity, for == compares elements; the id of a dead tensor is used again.
        self._known: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        copied = tensor.clone()
        self._made(copied)
        for each in (tensor, copied):
            self._known[id(each)] = weakref.ref(each), copied
        return copied

    def forget(self) -> None:
        self._known.clear()
