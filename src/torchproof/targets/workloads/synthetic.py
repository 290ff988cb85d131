"""Synthetic inputs: ids that are never reserved ones, marks for shapes that vary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torchproof import torch_private


def number_type(device: str) -> torch.dtype:
    """What weights and activations are kept in there."""
    return torch.bfloat16 if device == "cuda" else torch.float32


def token_ids(ordinary: int, batch: int, length: int, device: str) -> Tensor:
    """Random ids (batch, length) below `ordinary`, where the reserved ids begin."""
    return torch.randint(ordinary, (batch, length), device=device)


def sizes_of_calls(given: int | None, usual: Iterable[int]) -> list[int]:
    """The usual sizes, one for each call, or for all of them the given one."""
    return [each if given is None else given for each in usual]


def tokens(call: Any) -> tuple[float, str]:
    """What a call works off: its first tensor is (batch, length) or has more after."""
    first = next(iter(call.values() if isinstance(call, dict) else call))
    return float(first.shape[0] * first.shape[1]), "tokens"


def images(call: Any) -> tuple[float, str]:
    """What a call works off: its first tensor has one image, or its features, a row."""
    return float(call[0].shape[0]), "images"


def any_batch(*tensors: Tensor, name: str = "batch") -> None:
    """One graph for every size of dimension 0, 1 included; one size in one call."""
    for tensor in tensors:
        torch_private.mark_unbacked(tensor, 0, shape_id=name)


def any_length(*tensors: Tensor, dimension: int = 1) -> None:
    """One graph for every size of this dimension that tracing finds no limit for."""
    for tensor in tensors:
        torch_private.mark_weakly_dynamic(tensor, dimension)
