"""The one place where tensors leave the memory of a recording.

In goes what a recorded step returned; out goes the same structure, with copies that
the next replay does not touch, or with the recording's own buffers if asked for.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torchproof.tensors.tree import attributes


class Handout:
    """Hands out one recorded output, any number of times."""

    def __init__(self, recorded: Any, *, buffers: bool) -> None:
        self.recorded = mapped(recorded, Tensor.detach)
        self.buffers = buffers
        self.clones = self.cloned_bytes = 0

    def __call__(self) -> Any:
        if self.buffers:
            return self.recorded
        return mapped(self.recorded, self._clone)

    def _clone(self, tensor: Tensor) -> Tensor:
        self.clones += 1
        self.cloned_bytes += tensor.numel() * tensor.itemsize
        return tensor.clone()


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with every tensor changed, one that occurs twice only once.

    Not entered: modules, and objects without attributes.
    """
    return _mapped(value, change, {})


def _mapped(
    value: Any, change: Callable[[Tensor], Tensor], done: dict[int, Any]
) -> Any:
    if isinstance(value, Tensor):
        if id(value) not in done:
            with torch.no_grad():
                done[id(value)] = change(value)
        return done[id(value)]
    kind = type(value)
    if kind in (list, tuple, set):
        return kind(_mapped(each, change, done) for each in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(_mapped(each, change, done) for each in value))
    if isinstance(value, Mapping):
        parts = {key: _mapped(each, change, done) for key, each in value.items()}
        if kind is dict:
            return parts
        # Outputs of transformers are both a mapping and a dataclass.
        return kind(**parts) if dataclasses.is_dataclass(value) else kind(parts)
    held = attributes(value)
    if not held or not _holds_tensors(value):
        return value
    if id(value) not in done:
        done[id(value)] = again = copy.copy(value)
        for name, part in held.items():
            # Frozen dataclasses refuse plain assignment.
            object.__setattr__(again, name, _mapped(part, change, done))
    return done[id(value)]


def _holds_tensors(value: Any) -> bool:
    from torchproof.tensors.tree import walk

    return any(isinstance(part, Tensor) for _, part in walk(value, ""))
