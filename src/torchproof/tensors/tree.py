"""What a value is made of: in comes any value, out go its parts, each with a label.

Lists, tuples, dicts and sets are entered, and objects that hold attributes: caches,
batches and outputs of the user's or a library's own classes.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

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


def walk(
    value: Any, label: str, *, objects: bool = True, above: frozenset[int] = frozenset()
) -> Iterator[tuple[str, Any]]:
    """The value itself, then all its parts, the outer ones first.

    Without `objects`, objects other than lists, tuples and dicts are not entered.
    """
    yield label, value
    if id(value) in above:
        return
    above |= {id(value)}
    if isinstance(value, Mapping):
        parts = ((f"{label}[{key!r}]", part) for key, part in list(value.items()))
    elif isinstance(value, list | tuple):
        parts = ((f"{label}[{i}]", part) for i, part in enumerate(value))
    elif objects and (held := attributes(value)) is not None:
        parts = ((f"{label}.{name}", part) for name, part in list(held.items()))
    else:
        return
    for name, part in parts:
        yield from walk(part, name, objects=objects, above=above)


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
