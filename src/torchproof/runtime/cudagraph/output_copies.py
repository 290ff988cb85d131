"""Copies the outputs of a recording for the caller.

Takes what the recorded step returned, returns the same structure with copies that the
next replay does not overwrite, or with the recording's own buffers on request. No other
code passes the memory of a recording to the caller.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch
from torch import Tensor

from torchproof.runtime.tensors.tree import attributes, unwound


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
    """The same structure with `change` applied to every tensor, once per tensor.

    Modules and objects without attributes stay as they are.
    """
    if isinstance(value, Tensor):  # most outputs
        with torch.no_grad():
            return change(value)
    return unwound(_map_tensors(value, change, {}))


def _map_tensors(
    value: Any, change: Callable[[Tensor], Tensor], done: dict[int, Any]
) -> Generator[Any, Any, Any]:
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, Tensor):
        with torch.no_grad():
            done[id(value)] = change(value)
        return done[id(value)]
    kind = type(value)
    again = functools.partial(_map_tensors, change=change, done=done)
    if kind is list or kind is dict:
        container: Any = kind()
        done[id(value)] = container  # before it is filled: it may contain itself
        for key, part in value.items() if kind is dict else enumerate(value):
            changed = yield again(part)
            if kind is list:
                container.append(changed)
            else:
                container[key] = changed
        return container
    if isinstance(value, tuple | set | Mapping):
        done[id(value)] = value  # a part may refer back to it
        parts: list[Any] = []
        for part in value.values() if isinstance(value, Mapping) else value:
            parts += [(yield again(part))]
        done[id(value)] = _rebuild(value, parts)
        return done[id(value)]
    own_attributes = attributes(value)
    if not own_attributes or not _holds_tensors(value):
        return value
    done[id(value)] = copied = copy.copy(value)
    for name, part in own_attributes.items():
        # Frozen dataclasses refuse plain assignment.
        object.__setattr__(copied, name, (yield again(part)))
    return copied


def _rebuild(value: Any, parts: list[Any]) -> Any:
    """A container of the same type as `value` with these parts."""
    kind = type(value)
    if isinstance(value, Mapping):
        named = dict(zip(value, parts, strict=True))
        # Outputs of transformers are both a mapping and a dataclass.
        return kind(**named) if dataclasses.is_dataclass(value) else kind(named)
    if hasattr(value, "_fields"):
        return kind(*parts)
    return kind(parts) if kind in (tuple, set) else value


def _holds_tensors(value: Any) -> bool:
    from torchproof.runtime.tensors.tree import walk

    return any(isinstance(part, Tensor) for _, part in walk(value, ""))
