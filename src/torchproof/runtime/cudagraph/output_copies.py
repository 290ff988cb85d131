"""The one place where tensors leave the memory of a recording.

In goes what a recorded step returned; out goes the same structure, with copies that
the next replay does not touch, or with the recording's own buffers if asked for.
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
    if isinstance(value, Tensor):  # as most outputs are
        with torch.no_grad():
            return change(value)
    return unwound(_mapped(value, change, {}))


def _mapped(
    value: Any, change: Callable[[Tensor], Tensor], done: dict[int, Any]
) -> Generator[Any, Any, Any]:
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, Tensor):
        with torch.no_grad():
            done[id(value)] = change(value)
        return done[id(value)]
    kind, again = type(value), functools.partial(_mapped, change=change, done=done)
    if kind is list or kind is dict:
        made: Any = kind()
        done[id(value)] = made  # before it is filled: it may hold itself
        for key, part in value.items() if kind is dict else enumerate(value):
            found = yield again(part)
            made.append(found) if kind is list else made.update({key: found})
        return made
    if isinstance(value, tuple | set | Mapping):
        done[id(value)] = value  # for what it holds and that holds it
        parts: list[Any] = []
        for part in value.values() if isinstance(value, Mapping) else value:
            parts += [(yield again(part))]
        done[id(value)] = _made(value, parts)
        return done[id(value)]
    held = attributes(value)
    if not held or not _holds_tensors(value):
        return value
    done[id(value)] = copied = copy.copy(value)
    for name, part in held.items():
        # Frozen dataclasses refuse plain assignment.
        object.__setattr__(copied, name, (yield again(part)))
    return copied


def _made(value: Any, parts: list[Any]) -> Any:
    """A container of the same kind as the value, that holds these parts."""
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
