"""The arguments of a call: a key for the recording they need, and memory to copy into.

In come positional and keyword arguments of any structure. Tensors count by shape, type
and device; everything else counts by value, since the recorded run has looked at it.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import types
from collections.abc import Hashable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from torchproof.runtime.cudagraph.graph_status import Stop, Stopped
from torchproof.runtime.cudagraph.object_state import ATOMS
from torchproof.runtime.cudagraph.output_copies import mapped
from torchproof.runtime.cudagraph.reachable_state import dict_of
from torchproof.runtime.tensors.tree import walk
from torchproof.torch_private import dispatch_modes, step_capture

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
# Compared by identity, and do not change.
_CONSTANT = (
    *(type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum),
    *(range, type(...), re.Pattern, numpy.generic, PurePath),
)


_MARKS = re.compile("^_.*dynamo_|^_specialize_on$")


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of a call in a fixed order, also those that occur twice."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)


def key_of(call: Call) -> Hashable:
    """Equal for calls that one recording can serve."""
    try:
        return _key(call), _shared(call)
    except RecursionError:  # what holds itself has no end
        return TOO_DEEP


TOO_DEEP = "too deep"
_DEEPEST = 100  # keys are compared by recursion


def _key(value: Any, depth: int = 0) -> Hashable:
    if depth > _DEEPEST:
        raise RecursionError
    if isinstance(value, Tensor):
        more = value.requires_grad, type(value), *_own_attributes(value)
        return (value.shape, value.dtype, value.device, *more)
    if isinstance(value, Mapping):
        pairs = tuple((key, _key(part, depth + 1)) for key, part in value.items())
        return type(value), pairs, _attributes(value)
    if isinstance(value, list | tuple):
        parts = tuple(_key(part, depth + 1) for part in value)
        return type(value), parts, _attributes(value)
    if type(value) in (float, complex):
        return type(value), repr(value)  # NaN is NaN, and 0.0 is not -0.0
    if is_frozen(value):
        held = vars(value).items()
        return type(value), tuple((k, _key(part, depth + 1)) for k, part in held)
    if is_opaque(value):
        return (type(value),)
    return type(value), value


def _own_attributes(tensor: Tensor) -> list[str]:
    """Attributes that a user has set; torch marks sizes with some of its own."""
    return [name for name in tensor.__dict__ if not _MARKS.search(name)]


def _attributes(container: Any) -> Hashable:
    """The names of attributes that a container has beside its parts."""
    if type(container) in (dict, list, tuple):
        return None
    held = dict_of(container) or {}
    return tuple(name for name, value in held.items() if value is not None)


def assert_finite(call: Call) -> None:
    if key_of(call) == TOO_DEEP:
        told = "an argument holds itself, or is nested too deeply"
        raise Stopped(Stop("input", told))


def is_opaque(value: Any) -> bool:
    """Whether it may change and still be the same, as far as comparing goes."""
    return type(value) not in ATOMS and not isinstance(value, _CONSTANT)


def is_frozen(value: Any) -> bool:
    """Whether it is a frozen dataclass with its fields and nothing else."""
    kind = type(value)
    if not dataclasses.is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return False
    held = dict_of(value)
    return held is not None and held.keys() == kind.__dataclass_fields__.keys()


def _shared(call: Call) -> Hashable:
    """Which tensors of a call are the same, and which lie in the same memory."""
    tensors = list(tensors_in(call))
    if len(tensors) < 2:
        return ()
    places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    if len({*places}) == len(places):
        return ()
    same = list(map(id, tensors))
    return tuple(
        (same.index(a), places.index(b)) for a, b in zip(same, places, strict=True)
    )


def surroundings() -> Hashable:
    """What decides outside of the step how it computes."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
        dispatch_modes.default_device(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
    )


def shapes_of(call: Call) -> tuple[str, ...]:
    return tuple("x".join(map(str, each.shape)) or "0" for each in tensors_in(call))


class Buffers:
    """Memory of its own for the tensors of a call; the recorded step reads from it."""

    def __init__(self, call: Call) -> None:
        _assert_plain(call)
        self.args, self.kwargs = mapped(call, _buffer)
        self.tensors = list(tensors_in((self.args, self.kwargs)))
        # A tensor that is passed twice is copied once.
        self._places = list({id(t): i for i, t in enumerate(self.tensors)}.values())
        self._into = [self.tensors[place].detach() for place in self._places]
        self.changed: list[int] = []  # places of those the step writes into

    def fill(self, call: Call) -> list[Tensor]:
        """Copies a call's tensors in, and returns them."""
        given = list(tensors_in(call))
        if self._into:
            step_capture.copy_into(self._into, [given[place] for place in self._places])
        return given

    def assert_apart(self, call: Call) -> None:
        """Arguments that share memory have memory of their own here."""
        given = list(tensors_in(call))
        for place in self.changed:
            storage = given[place].untyped_storage().data_ptr()
            for other in given:
                if (
                    other is not given[place]
                    and other.untyped_storage().data_ptr() == storage
                ):
                    told = "arguments share memory, and the step writes into it"
                    raise Stopped(Stop("input", told))

    def give_back(self, given: list[Tensor]) -> None:
        """What the step wrote into its arguments, and their gradients."""
        with torch.no_grad():
            for place in self.changed:
                given[place].copy_(self.tensors[place])
        for buffer, tensor in zip(self.tensors, given, strict=True):
            if buffer.grad is None or not tensor.is_leaf:
                continue
            fresh = buffer.grad.detach().clone()
            tensor.grad = fresh if tensor.grad is None else tensor.grad + fresh


def _assert_plain(call: Call) -> None:
    """A call whose tensors are all seen; a cache or a module would hide some."""
    seen = {id(tensor) for tensor in tensors_in(call)}
    for label, part in walk(call, "argument"):
        if isinstance(part, nn.Module):
            raise Stopped(
                Stop("input", f"{label} is a module: let the step close over it")
            )
        if not isinstance(part, Tensor):
            if isinstance(part, Mapping | list | tuple):
                _assert_only_parts(label, part, seen)
            elif is_opaque(part) and not is_frozen(part):
                kind = type(part).__name__
                told = (
                    f"{label} is a {kind}, which may change: let the step close over it"
                )
                raise Stopped(Stop("input", told))
            continue
        if own := _own_attributes(part):
            raise Stopped(Stop("input", f"{label} has an attribute {own[0]!r}"))
        plain = type(part) in (Tensor, nn.Parameter) and part.layout is torch.strided
        if id(part) not in seen or not plain:
            raise Stopped(
                Stop("input", f"{label} is not a plain tensor in a list, tuple or dict")
            )


def _assert_only_parts(label: str, container: Any, seen: set[int]) -> None:
    """A container of another class is made again from its parts alone."""
    for name, value in (dict_of(container) or {}).items():
        inside = list(tensors_in(value))
        if value is not None and not (inside and {*map(id, inside)} <= seen):
            raise Stopped(
                Stop("input", f"{label} has an attribute {name!r}, which may change")
            )


def _buffer(tensor: Tensor) -> Tensor:
    made = torch.empty_like(tensor, memory_format=torch.preserve_format)
    made.copy_(tensor)
    return made.requires_grad_(tensor.requires_grad)
