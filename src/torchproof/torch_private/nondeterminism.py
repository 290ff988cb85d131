"""What only torch knows about two runs whose answers are compared."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch

PROBES: dict[str, tuple[str, ...]] = {
    "compiled random numbers as in eager": ("torch._inductor.config:fallback_random",),
    "version counters": ("torch._C._autograd:_unsafe_set_version_counter",),
}

_MOST_NODES = 100_000


def uses_eager_random() -> bool:
    """Whether Inductor is told to draw random numbers as eager does."""
    return bool(importlib.import_module("torch._inductor.config").fallback_random)


def set_versions(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Autograd takes the tensors for unchanged since they had these versions."""
    # Of one counter, as views and their base share it, the last entry holds.
    torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(versions))


def autograd_dtypes(outputs: Iterable[torch.Tensor]) -> set[torch.dtype]:
    """The types of all values an autograd graph leads through."""
    dtypes: set[torch.dtype] = set()
    waiting: list[Any] = [each.grad_fn for each in outputs if each.grad_fn is not None]
    visited = set(waiting)
    while waiting and len(visited) < _MOST_NODES:
        node = waiting.pop()
        # A node of a function written in Python may not have it.
        dtypes |= {each.dtype for each in getattr(node, "_input_metadata", ())}
        new = {inner for inner, _ in node.next_functions if inner is not None} - visited
        visited |= new
        waiting.extend(new)
    return dtypes
