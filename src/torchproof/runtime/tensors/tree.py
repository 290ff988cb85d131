"""Walks nested values: takes any value, yields its parts, each with a label.

It enters lists, tuples and dicts, and objects with attributes: caches, batches and
outputs of the user's or a library's classes.
"""

from __future__ import annotations

import types
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import torch
from torch import nn

_LONGEST = 500  # characters of a label
_HEAD = 100  # characters of a longer label that are kept
# Values that have attributes but are not entered.
_WHOLE = (
    torch.Tensor,
    torch.Generator,
    nn.Module,
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    BaseException,
)


def walk(value: Any, label: str, *, objects: bool = True) -> Iterator[tuple[str, Any]]:
    """The value itself, then all its parts at any depth, the outer ones first.

    A container inside itself is not entered again. Long labels are cut and numbered.
    Without `objects`, only lists, tuples and dicts are entered.
    """
    above: list[int] = []
    entered: set[int] = set()
    levels: list[Iterator[tuple[str, Any]]] = [iter([(label, value)])]
    number = 0
    while levels:
        item = next(levels[-1], None)
        if item is None:
            levels.pop()
            if above:
                entered.discard(above.pop())
            continue
        name, part = item
        number += 1
        if len(name) > _LONGEST:
            name = f"{name[:_HEAD]}...({number})"
        yield name, part
        inner = None if id(part) in entered else _parts(part, name, objects)
        if inner is not None:
            above.append(id(part))
            entered.add(id(part))
            levels.append(inner)


def _parts(value: Any, label: str, objects: bool) -> Iterator[tuple[str, Any]] | None:
    """The parts of a container; None for any other value."""
    if isinstance(value, Mapping):
        return ((f"{label}[{key!r}]", part) for key, part in list(value.items()))
    if isinstance(value, list | tuple):
        return ((f"{label}[{i}]", part) for i, part in enumerate(value))
    if objects and (own := attributes(value)) is not None:
        return ((f"{label}.{name}", part) for name, part in list(own.items()))
    return None


def attributes(value: Any) -> dict[str, Any] | None:
    """The attributes of an object that is entered; None for any other value."""
    if isinstance(value, _WHOLE) or type(value).__module__.startswith("torch."):
        return None
    own = getattr(value, "__dict__", None)
    return own if isinstance(own, dict) else None


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that contain the data: the inner ones of a wrapper subclass."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    for name in flatten()[0]:
        inner = getattr(tensor, name)
        if isinstance(inner, torch.Tensor):
            yield from plain_tensors(inner)


def unwound(step: Generator[Any, Any, Any]) -> Any:
    """Runs a recursive generator without recursion and returns its result.

    The generator yields the generators that it calls, and receives their results.
    """
    calls = [step]
    answer = None
    while calls:
        try:
            inner = calls[-1].send(answer)
        except StopIteration as stop:
            calls.pop()
            answer = stop.value
        else:
            calls.append(inner)
            answer = None
    return answer
