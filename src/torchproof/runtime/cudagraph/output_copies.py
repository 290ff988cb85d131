"""Copies the outputs of a recording for the caller.

Takes what the recorded step returned, returns the same structure with copies that the
next replay does not overwrite, or with the recording's own buffers on request. No other
code passes the memory of a recording to the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchproof.torch_private import trees


class OutputCopies:
    """Returns a copy of one recorded output at each call."""

    def __init__(self, recorded: Any, *, buffers: bool) -> None:
        self.recorded = map_tensors(recorded, Tensor.detach)
        self.buffers = buffers
        self.clones = self.cloned_bytes = 0

    def __call__(self) -> Any:
        if self.buffers:
            return self.recorded
        return map_tensors(self.recorded, self._clone)

    def _clone(self, tensor: Tensor) -> Tensor:
        self.clones += 1
        self.cloned_bytes += tensor.numel() * tensor.itemsize
        return tensor.clone()


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with `change` applied to every tensor, once per tensor."""
    with torch.no_grad():
        return trees.mapped(
            value,
            lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf,
            objects=True,
        )
