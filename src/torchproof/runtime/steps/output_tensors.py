"""Finds tensors in nested values, and copies them out of CUDA graph memory."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from torchproof.records import UserError


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists, dicts and dataclasses."""
    waiting = [value]
    entered = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            yield value
            continue
        parts = _parts(value)
        if parts and id(value) not in entered:  # it may contain itself
            entered.add(id(value))
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
            f"a {type(value).__name__} contains itself, or is nested too deeply, and"
            " cannot be copied out of a step: return its tensors instead"
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
        result = copy.copy(value)
        for key, item in value.items():
            result[key] = _mapped(item, change)
        return result
    attributes = getattr(value, "__dict__", {}).values()
    if any(isinstance(attribute, Tensor) for attribute in attributes):
        # Without a copy, the next step would overwrite its tensors.
        raise UserError(
            f"a {type(value).__name__} contains tensors and cannot be copied out of a"
            " step: return its tensors in a tuple, list, dict or dataclass"
        )
    return value


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(value: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]


def _record(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    result = copy.copy(value)
    frozen = value.__dataclass_params__.frozen
    for name in _fields(value):
        item = _mapped(getattr(value, name), change)
        if frozen:
            object.__setattr__(result, name, item)
        else:
            setattr(result, name, item)
    return result


class Copies:
    """Copies each tensor once; a copy is not copied again."""

    def __init__(self, on_copy: Callable[[Tensor], None]) -> None:
        self._on_copy = on_copy
        # By id, because == compares elements. The id of a dead tensor may be reused.
        self._copies: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        entry = self._copies.get(id(tensor))
        if entry is not None and entry[0]() is tensor:
            return entry[1]
        copied = tensor.clone()
        self._on_copy(copied)
        for each in (tensor, copied):
            self._copies[id(each)] = weakref.ref(each), copied
        return copied

    def forget(self) -> None:
        self._copies.clear()
