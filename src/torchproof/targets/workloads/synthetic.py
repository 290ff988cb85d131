"""Synthetic inputs for the workloads: random token ids, and marks for dynamic sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from torchproof import torch_private


def number_type(device: str) -> torch.dtype:
    """The dtype of weights and activations on a device."""
    return torch.bfloat16 if device == "cuda" else torch.float32


def token_ids(ordinary: int, batch: int, length: int, device: str) -> Tensor:
    """Random ids (batch, length) below `ordinary`, where the reserved ids begin."""
    return torch.randint(ordinary, (batch, length), device=device)


def any_batch(*tensors: Tensor, name: str = "batch") -> None:
    """Marks dimension 0 as unbacked: one graph for every batch size, including 1."""
    for tensor in tensors:
        torch_private.mark_unbacked(tensor, 0, shape_id=name)


def any_length(*tensors: Tensor, dimension: int = 1) -> None:
    """Marks a dimension as dynamic, unless tracing finds that it must be constant."""
    for tensor in tensors:
        torch_private.mark_weakly_dynamic(tensor, dimension)
