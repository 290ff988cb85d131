"""The arguments of a call: the key of their recording, and buffers to copy them into.

Takes positional and keyword arguments of any structure. In the key, tensors count by
shape, strides, dtype, device and what else a step can ask of them besides their
content; everything else counts by value, because the recorded run may have read it.
"""

from __future__ import annotations

import enum
import operator
import re
import types
from collections.abc import Callable, Hashable, Mapping
from pathlib import PurePath
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from torchproof.records import Keywords, UserError
from torchproof.runtime.cudagraph.graph_status import Stop, Stopped
from torchproof.runtime.cudagraph.object_state import ATOMS
from torchproof.runtime.cudagraph.watched_places import dict_of, hooks_of
from torchproof.runtime.tensors import strides
from torchproof.torch_private import step_capture, trees
from torchproof.torch_private.tensor_layouts import same_layouts

Call = tuple[tuple[Any, ...], Keywords]
Tensors = step_capture.Tensors
# Types whose values do not change.
_CONSTANT = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    enum.Enum,
    range,
    type(...),
    re.Pattern,
    numpy.generic,
    PurePath,
)


_MARKS = re.compile("^_.*dynamo_|^_specialize_on$")


tensors_in = trees.tensors


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with `change` applied to every tensor, once per tensor."""
    with torch.no_grad():
        return trees.mapped(
            value,
            lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf,
            objects=True,
        )


def key_of(call: Call) -> Hashable:
    """A key that is equal for calls that the same recording can serve."""
    try:
        return _key(call), _shared(call)
    except RecursionError:  # the argument contains itself
        return TOO_DEEP


def key_of_declared(value: Any) -> Hashable:
    """The key of what `depends` returns, which has to tell all its values apart."""
    if type(value) is tuple:
        return tuple(map(key_of_declared, value))
    if is_opaque(value):
        raise UserError(
            f"depends returns a {type(value).__name__}, which is not compared by"
            " value: return numbers, strings, or tuples of them"
        )
    return _key(value)


TOO_DEEP = "too deep"
_DEEPEST = 100  # keys are compared by recursion


def _key(value: Any, depth: int = 0) -> Hashable:
    if depth > _DEEPEST:
        raise RecursionError
    if isinstance(value, Tensor):
        return _key_of_tensor(value)
    if isinstance(value, Mapping):
        pairs = tuple((key, _key(part, depth + 1)) for key, part in value.items())
        return type(value), pairs, _attributes(value)
    if isinstance(value, list | tuple):
        parts = tuple(_key(part, depth + 1) for part in value)
        return type(value), parts, _attributes(value)
    if type(value) in (float, complex):
        return type(value), repr(value)  # NaN equals NaN, and 0.0 differs from -0.0
    if is_opaque(value):
        return (type(value),)
    return type(value), value


def _key_of_tensor(tensor: Tensor) -> Hashable:
    is_strided = tensor.layout is torch.strided
    return (
        type(tensor),
        tensor.shape,
        tensor.stride() if is_strided else tensor.layout,
        tensor.dtype,
        tensor.device,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.requires_grad and (_is_hooked(tensor), has_gradient(tensor)),
        *_own_attributes(tensor),
    )


def _is_hooked(tensor: Tensor) -> bool:
    """Whether a backward through the tensor runs hooks of the caller."""
    return tensor.requires_grad and any(hooks_of(tensor))


def has_gradient(tensor: Tensor) -> bool:
    return tensor.is_leaf and tensor.grad is not None


def _own_attributes(tensor: Tensor) -> list[str]:
    """Attributes that the user has set, without torch's marks for dynamic sizes."""
    return [name for name in tensor.__dict__ if not _MARKS.search(name)]


def _attributes(container: Any) -> Hashable:
    """The names of a container's attributes, apart from its parts."""
    if type(container) in (dict, list, tuple):
        return None
    attributes = dict_of(container) or {}
    return tuple(name for name, value in attributes.items() if value is not None)


def _refused(reason: str) -> Stopped:
    return Stopped(Stop("input", reason))


def is_opaque(value: Any) -> bool:
    """Whether it may change while it still compares equal."""
    return type(value) not in ATOMS and not isinstance(value, _CONSTANT)


def _shared(call: Call) -> Hashable:
    """Which tensors of a call are identical, and which share a storage."""
    tensors = list(tensors_in(call))
    if len(tensors) < 2:
        return ()
    storages = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    if len({*storages}) == len(storages):
        return ()
    same = list(map(id, tensors))
    return tuple(
        (same.index(a), storages.index(b)) for a, b in zip(same, storages, strict=True)
    )


class LikeCall:
    """Recognises calls with the key of one call, without computing their key.

    Only for calls whose arguments are plain tensors and constants. It may fail to
    recognise a call, for example in another grad mode.
    """

    def __init__(self, args: tuple[Any, ...], names: tuple[str, ...]) -> None:
        self._names = names
        self._types = list(map(type, args))
        places = [i for i, kind in enumerate(self._types) if kind is Tensor]
        others = [i for i, kind in enumerate(self._types) if kind is not Tensor]
        self._places = None if not others else places
        self._others = others
        self._constants = [args[i] for i in others]
        self._tensors: list[Tensor] = [args[i] for i in places]
        self._guards = same_layouts(self._tensors)

    @classmethod
    def of(cls, call: Call) -> LikeCall | None:
        """None if only their key says whether calls are alike."""
        args = (*call[0], *call[1].values())
        like = cls(args, tuple(call[1]))
        is_plain = all(kind in _COMPARED for kind in like._types)
        learns = any(each.requires_grad for each in like._tensors)
        if not is_plain or learns or like._guards is None:
            return None
        return like if like.tensors_of(call) is not None else None

    def tensors_of(self, call: Call) -> Tensors | None:
        """The tensors of a call; None if the call is not recognised."""
        args, kwargs = call
        if tuple(kwargs) != self._names:
            return None
        if kwargs:
            args = (*args, *kwargs.values())
        if list(map(type, args)) != self._types:
            return None
        if self._places is None:
            tensors: Tensors = args
        else:
            tensors = [args[place] for place in self._places]
            if [args[place] for place in self._others] != self._constants:
                return None
        assert self._guards is not None
        if not self._guards(*tensors) or any(map(_own_names, tensors)):
            return None
        if len(tensors) > 1 and _shared(call):
            return None
        return tensors


_COMPARED = frozenset({Tensor, bool, int, str, type(None)})
_own_names: Callable[[Tensor], Any] = operator.attrgetter("__dict__")


def shapes_of(call: Call) -> tuple[str, ...]:
    return tuple("x".join(map(str, each.shape)) or "0" for each in tensors_in(call))


class Buffers:
    """Static buffers for the tensors of a call, which the recorded step reads."""

    def __init__(self, call: Call) -> None:
        _assert_plain(call)
        self.args, self.kwargs = map_tensors(call, _buffer)
        self.tensors = list(tensors_in((self.args, self.kwargs)))
        # A tensor that occurs twice is copied once.
        self._places = list({id(t): i for i, t in enumerate(self.tensors)}.values())
        self._into = [strides.memory_of(self.tensors[each]) for each in self._places]
        # Of the tensors whose elements share memory, or are to be conjugated.
        self._indirect = {
            place
            for place, into in zip(self._places, self._into, strict=True)
            if into.shape != self.tensors[place].shape or _has_bits(self.tensors[place])
        }
        self._learn = any(each.requires_grad for each in self.tensors)
        self.changed: list[int] = []  # indices of the tensors that the step writes to

    def fill(self, tensors: Tensors) -> None:
        """Copies the tensors of a call into the buffers."""
        if not self._into:
            return
        if not self._indirect and len(self._places) == len(tensors):
            step_capture.copy_into(self._into, tensors)
        else:
            step_capture.copy_into(
                self._into, [self._memory_at(place, tensors) for place in self._places]
            )

    def _memory_at(self, place: int, tensors: Tensors) -> Tensor:
        tensor = tensors[place]
        return strides.memory_of(tensor) if place in self._indirect else tensor

    def assert_apart(self, call: Call) -> None:
        """Raises `Stopped` if a written argument shares memory: the buffers do not."""
        tensors = list(tensors_in(call))
        for written in map(tensors.__getitem__, self.changed):
            storage = written.untyped_storage().data_ptr()
            others = (each for each in tensors if each is not written)
            if any(each.untyped_storage().data_ptr() == storage for each in others):
                raise _refused("arguments share memory, and the step writes to it")

    def give_back(self, tensors: Tensors) -> None:
        """Copies what the step wrote, and gradients, back to the caller's tensors."""
        if self.changed:
            with torch.no_grad():
                for place in self.changed:
                    self._memory_at(place, tensors).copy_(
                        self._memory_at(place, self.tensors)
                    )
        if not self._learn:
            return
        for buffer, tensor in zip(self.tensors, tensors, strict=True):
            if buffer.grad is None or not tensor.is_leaf:
                continue
            fresh = buffer.grad.detach().clone()
            tensor.grad = fresh if tensor.grad is None else tensor.grad + fresh


def _assert_plain(call: Call) -> None:
    """Raises `Stopped` for arguments that may hide tensors, such as modules."""
    if key_of(call) == TOO_DEEP:
        raise _refused("an argument contains itself, or is nested too deeply")
    visible = {id(tensor) for tensor in tensors_in(call)}
    arguments: dict[Any, Any] = {**dict(enumerate(call[0])), **call[1]}
    for label, part in trees.walk(arguments, "argument", objects=True):
        if isinstance(part, nn.Module):
            raise _refused(f"{label} is a module: let the step close over it instead")
        if isinstance(part, Mapping | list | tuple):
            # A copied container keeps only its parts.
            for name, value in (dict_of(part) or {}).items():
                inside = list(tensors_in(value))
                if value is not None and not (inside and {*map(id, inside)} <= visible):
                    raise _refused(
                        f"{label} has an attribute {name!r}, which may change"
                    )
        elif not isinstance(part, Tensor):
            if is_opaque(part):
                raise _refused(
                    f"{label} is a {type(part).__name__}, which may change: let the"
                    " step close over it"
                )
        elif names := _own_attributes(part):
            raise _refused(f"{label} has an attribute {names[0]!r}")
        elif _is_hooked(part):
            raise _refused(f"{label} has a hook, which a replay ignores")
        elif (
            id(part) not in visible
            or type(part) not in (Tensor, nn.Parameter)
            or part.layout is not torch.strided
        ):
            raise _refused(f"{label} is not a plain tensor in a list, tuple or dict")


def _buffer(tensor: Tensor) -> Tensor:
    buffer = strides.empty_like(tensor)
    strides.memory_of(buffer).copy_(strides.memory_of(tensor))
    return buffer.requires_grad_(tensor.requires_grad)


def _has_bits(tensor: Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()
