"""Copies tensors out of CUDA graph memory, each of them once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchproof.torch_private import trees


class Copies:
    """Copies each tensor once; a copy is not copied again."""

    def __init__(self, on_copy: Callable[[Tensor], None]) -> None:
        self._on_copy = on_copy
        # By id, because == compares elements. The id of a dead tensor may be reused.
        self._copies: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def of(self, value: Any) -> Any:
        """The same value with a copy in place of each tensor."""
        return trees.mapped(value, self._copy, objects=True)

    def _copy(self, tensor: Any) -> Any:
        if not isinstance(tensor, Tensor):
            return tensor
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
