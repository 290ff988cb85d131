"""What a value is made of: in comes any value, out go its parts, each with a label.

Lists, tuples, dicts and sets are entered, and objects that hold attributes: caches,
batches and outputs of the user's or a library's own classes.
"""

from __future__ import annotations

import types
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import torch
from torch import nn

_LONGEST, _HEAD = 500, 100  # characters of a label, and of one that is cut
# Values that have attributes but are looked at as a whole.
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
    """The value itself, then all its parts, the outer ones first.

    However deep they lie: a part that is one of the containers around it is not entered
    again, and long labels are cut and numbered. Without `objects`, objects other than
    lists, tuples and dicts are not entered.
    """
    above: list[int] = []
    entered: set[int] = set()
    levels: list[Iterator[tuple[str, Any]]] = [iter([(label, value)])]
    number = 0
    while levels:
        found = next(levels[-1], None)
        if found is None:
            levels.pop()
            if above:
                entered.discard(above.pop())
            continue
        name, part = found
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
    """What a container holds; None of anything else."""
    if isinstance(value, Mapping):
        return ((f"{label}[{key!r}]", part) for key, part in list(value.items()))
    if isinstance(value, list | tuple):
        return ((f"{label}[{i}]", part) for i, part in enumerate(value))
    if objects and (held := attributes(value)) is not None:
        return ((f"{label}.{name}", part) for name, part in list(held.items()))
    return None


def attributes(value: Any) -> dict[str, Any] | None:
    """The attributes of an object that is a container; None of anything else."""
    if isinstance(value, _WHOLE) or type(value).__module__.startswith("torch."):
        return None
    found = getattr(value, "__dict__", None)
    return found if isinstance(found, dict) else None


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that hold the numbers: those inside, where it is a wrapper."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    for name in flatten()[0]:
        inner = getattr(tensor, name)
        if isinstance(inner, torch.Tensor):
            yield from plain_tensors(inner)


def unwound(step: Generator[Any, Any, Any]) -> Any:
    """What a recursive generator returns, without recursion.

    It yields the generators that it calls, and gets back what they return.
    """
    calls, answer = [step], None
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
