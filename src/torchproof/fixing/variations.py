"""Inputs that the target has not been called with, made from its own calls.

An edit must agree with the original on these as well: other values of the same types
and shapes, NaN and infinities, zeros, and values that a validation refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchproof import torch_private

Change = Callable[[Tensor], Tensor]


def variations(call: Any) -> Iterator[tuple[str, Any]]:
    """Copies of a call with other values, each with a name."""
    kinds = {_kind(t) for t in torch_private.trees.tensors(call, objects=True)}
    for kind, name, change in _CHANGES:
        if kind in kinds:
            yield name, _changed(call, kind, change)


def _kind(tensor: Tensor) -> str:
    if tensor.dtype == torch.bool:
        return "bool"
    return "float" if tensor.is_floating_point() else "int"


def _changed(call: Any, kind: str, change: Change) -> Any:
    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        copy = leaf.detach().clone()
        if _kind(leaf) == kind and leaf.numel():
            copy = change(copy)
        return copy.requires_grad_(leaf.requires_grad)

    return torch_private.trees.mapped(call, convert, objects=True)


def _shuffled(tensor: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(tensor.numel())  # the same in every run
    order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
    return tensor.flatten()[order].reshape(tensor.shape)


def _with_one(value: float) -> Change:
    def change(tensor: Tensor) -> Tensor:
        tensor.reshape(-1)[tensor.numel() // 2] = value
        return tensor

    return change


def _above(tensor: Tensor) -> Tensor:
    """One index beyond every valid one; on a GPU that would end the process."""
    if not tensor.is_cpu:
        return tensor
    tensor.reshape(-1)[-1] = torch.iinfo(tensor.dtype).max // 2
    return tensor


def _below(tensor: Tensor) -> Tensor:
    if not tensor.is_cpu or not tensor.dtype.is_signed:
        return tensor
    tensor.reshape(-1)[0] = -3
    return tensor


_CHANGES: tuple[tuple[str, str, Change], ...] = (
    ("float", "other values", _shuffled),
    ("float", "the opposite sign", torch.neg),
    ("float", "zeros", torch.zeros_like),
    ("float", "a NaN", _with_one(float("nan"))),
    ("float", "an infinity", _with_one(float("inf"))),
    ("float", "large values", lambda t: t * 1e4),
    ("int", "other integers", _shuffled),
    ("int", "integers of zero", torch.zeros_like),
    ("int", "integers of one", torch.ones_like),
    ("int", "an integer too large", _above),
    ("int", "a negative integer", _below),
    ("bool", "the opposite", torch.logical_not),
    ("bool", "all true", torch.ones_like),
    ("bool", "all false", torch.zeros_like),
)
