"""Private facts of torch that matter when the outputs of two runs are compared."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch

_MOST_NODES = 100_000


def uses_eager_random() -> bool:
    """Whether compiled code draws the same random numbers as eager code."""
    return bool(importlib.import_module("torch._inductor.config").fallback_random)


def set_versions(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Makes autograd treat the tensors as unchanged since they had these versions."""
    # Views and their base share one counter: the last version given for it counts.
    torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(versions))


def autograd_dtypes(outputs: Iterable[torch.Tensor]) -> set[torch.dtype]:
    """The dtypes of all values in an autograd graph."""
    dtypes: set[torch.dtype] = set()
    queue: list[Any] = [each.grad_fn for each in outputs if each.grad_fn is not None]
    visited = set(queue)
    while queue and len(visited) < _MOST_NODES:
        node = queue.pop()
        # Nodes of autograd functions written in Python may lack it.
        dtypes |= {each.dtype for each in getattr(node, "_input_metadata", ())}
        new = {inner for inner, _ in node.next_functions if inner is not None} - visited
        visited |= new
        queue.extend(new)
    return dtypes
