"""Pads calls up to a bucket, and cuts outputs back to the size of the call.

Takes the arguments of a call and the user's declaration: which dimensions of which
arguments may be padded at their end, and with what value. Dimensions of the same name
vary together. Only declared dimensions are padded. The outputs of a padded call are cut
to the shapes that eager returned for its size.
"""

from __future__ import annotations

import copy
import inspect
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from torchproof.records import UserError, one_line
from torchproof.runtime.cudagraph.call_inputs import Call, map_tensors
from torchproof.runtime.cudagraph.graph_status import Padded, Stop, Stopped
from torchproof.torch_private import trees

Size = tuple[int, ...]  # one number for each name
Sizes = dict[str, int]
Shapes = tuple[tuple[int, ...], ...]
Path = tuple[int | str, ...]


@dataclass(frozen=True)
class Pad:
    """The dimensions of an argument that may be padded at their end, and the value.

    `dimensions` has a name for each dimension, such as `("batch", "length")`, and None
    for a dimension that must not be padded. Dimensions can also be given as numbers,
    which vary together with the same numbers of other arguments.
    """

    dimensions: int | str | Sequence[int | str | None]
    value: float | bool = 0

    @classmethod
    def of(cls, spec: Any) -> Pad:
        return spec if isinstance(spec, Pad) else cls(() if spec is None else spec)

    def names(self) -> dict[int, str]:
        """The name of each dimension that may be padded."""
        declared = self.dimensions
        each = (declared,) if isinstance(declared, int | str) else tuple(declared)
        if each and all(isinstance(number, int) for number in each):
            return {int(n): f"dimension {n}" for n in each if n is not None}
        if any(isinstance(name, int) for name in each):
            raise UserError(
                f"{declared!r}: use either names or numbers of dimensions, not both"
            )
        return {i: str(name) for i, name in enumerate(each) if name is not None}


@dataclass(frozen=True)
class Place:
    """A tensor in the arguments, and its dimensions that may be padded."""

    argument: str
    position: int | None  # of the argument, if it may be positional
    inside: tuple[str, ...]  # the keys from the argument to the tensor
    dimensions: Mapping[int, str]
    value: float | bool

    @classmethod
    def parse(cls, key: str, spec: Any, step: Callable[..., Any]) -> Place:
        """The place of an argument, declared by its name or position."""
        argument, *inside = key.split(".")
        called = step.forward if isinstance(step, nn.Module) else step
        every = inspect.signature(called).parameters.values()
        kinds = inspect.Parameter
        named = [p.name for p in every if p.kind not in _ANYTHING]
        ordered = [
            p.name for p in every if p.kind not in (*_ANYTHING, kinds.KEYWORD_ONLY)
        ]
        position = int(argument) if argument.isdigit() else None
        if position is not None and position < len(ordered):
            argument = ordered[position]
        elif argument in ordered:
            position = ordered.index(argument)
        if argument not in named and all(p.kind not in _ANYTHING for p in every):
            raise UserError(
                f"pad[{key!r}]: the step has no such argument; its arguments are"
                f" {', '.join(named)}"
            )
        pad = Pad.of(spec)
        return cls(argument, position, tuple(inside), pad.names(), pad.value)

    def path(self, call: Call) -> Path | None:
        """The keys that lead from the call to the tensor; None if it is not given."""
        args, kwargs = call
        if self.argument in kwargs:
            return 1, self.argument, *self.inside
        if self.position is not None and self.position < len(args):
            return 0, self.position, *self.inside
        return None

    def accepts(self, value: Any) -> bool:
        """Whether a value can be padded."""
        return (
            isinstance(value, Tensor)
            and not value.requires_grad
            and all(-value.dim() <= d < value.dim() for d in self.dimensions)
        )

    def padded(self, tensor: Tensor, sizes: Sizes) -> Tensor:
        shape = list(tensor.shape)
        for dimension, name in self.dimensions.items():
            shape[dimension] = sizes[name]
        with torch.no_grad():
            result = tensor.new_full(shape, self.value)
            _start(result, tensor.shape).copy_(tensor)
        return result


_ANYTHING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _part(value: Any, key: int | str) -> Any:
    if isinstance(value, Mapping):
        return value.get(key)
    if isinstance(value, list | tuple) and str(key).isdigit():
        return value[int(key)] if int(key) < len(value) else None
    return None


def _with(value: Any, path: Path, tensor: Tensor) -> Any:
    """A copy of nested containers with another tensor at a path."""
    if not path:
        return tensor
    part = _with(_part(value, path[0]), path[1:], tensor)
    if isinstance(value, tuple):
        parts = [*value]
        parts[int(path[0])] = part
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    again = copy.copy(value)
    again[path[0] if isinstance(value, Mapping) else int(path[0])] = part
    return again


@dataclass(frozen=True)
class Fit:
    """A call padded to its bucket; `sizes` are those that it had."""

    sizes: Sizes
    bucket: Sizes
    call: Call

    @property
    def is_padded(self) -> bool:
        return self.sizes != self.bucket


class Padder:
    """Decides which calls are padded to which bucket, and counts the waste."""

    def __init__(self, places: Sequence[Place], buckets: Any) -> None:
        named = [name for place in places for name in place.dimensions.values()]
        self.names = tuple(dict.fromkeys(named))
        if not self.names:
            raise UserError(
                'pad: name at least one dimension, such as {"x": ("batch", None)}'
            )
        sizes = _bucket_sizes(buckets)
        if any(len(size) != len(self.names) for size in sizes):
            names = ", ".join(self.names)
            raise UserError(f"buckets: each needs one number for each of {names}")
        self._places = places
        # The cheapest first.
        ordered = sorted(sizes, key=lambda size: (math.prod(size), size))
        self._buckets = {size: Padded(size) for size in ordered}

    @classmethod
    def parse(cls, step: Callable[..., Any], pad: Any, sizes: Any) -> Padder | None:
        """The padder for the arguments of `torchproof.graph`; None without padding.

        `pad` maps the name or position of an argument to its dimensions; `a.b` is the
        entry b of argument a.
        """
        if pad is None and sizes is None:
            return None
        if pad is None or sizes is None:
            raise UserError(
                "pad, which names the dimensions to pad, and buckets, the sizes to pad"
                " to, need each other"
            )
        if not isinstance(pad, Mapping):
            kind = type(pad).__name__
            raise UserError(f"pad: must be a dict of dimensions, not a {kind}")
        places = [Place.parse(str(key), spec, step) for key, spec in pad.items()]
        return cls(places, sizes)

    def fit(self, call: Call) -> Fit | None:
        """The call in its bucket; None if it cannot be padded, or no bucket fits."""
        sizes = self._sizes(call)
        if sizes is None:
            return None
        size = tuple(sizes.values())
        fitting = (b for b in self._buckets if all(map(operator.ge, b, size)))
        bucket = next(fitting, None)
        if bucket is None or not all(size):
            return None
        to = dict(zip(self.names, bucket, strict=True))
        if bucket != size:
            for place, path, tensor in self._values(call):
                call = _with(call, path, place.padded(tensor, to))
        return Fit(sizes, to, call)

    def _sizes(self, call: Call) -> Sizes | None:
        """The size of each name in a call; None if the call cannot be padded."""
        sizes: Sizes = {}
        for place, _, value in self._values(call):
            if not place.accepts(value):
                return None
            for dimension, name in place.dimensions.items():
                size = value.shape[dimension]
                if sizes.setdefault(name, size) != size:
                    return None
        if sizes.keys() != {*self.names}:
            return None
        return {name: sizes[name] for name in self.names}

    def _values(self, call: Call) -> Iterator[tuple[Place, Path, Any]]:
        """The value at each place; skips arguments that are missing or None."""
        for place in self._places:
            if (path := place.path(call)) is not None:
                value: Any = call
                for key in path:
                    value = _part(value, key)
                if value is not None:
                    yield place, path, value

    def count(self, fit: Fit) -> None:
        """Counts a call that the recording of its bucket answered."""
        bucket = self._buckets[tuple(fit.bucket.values())]
        bucket.calls += 1
        bucket.useful_work += math.prod(fit.sizes.values())
        work = bucket.calls * math.prod(bucket.size)
        bucket.waste = work / bucket.useful_work - 1

    def status(self) -> tuple[Padded, ...]:
        return tuple(map(replace, self._buckets.values()))


def _bucket_sizes(buckets: Any) -> list[Size]:
    """Normalises the buckets: each is a number or a tuple of numbers."""
    try:
        every = [(each,) if isinstance(each, int) else tuple(each) for each in buckets]
    except TypeError:
        every = [()]
    numbers = [number for size in every for number in size]
    if not all(every) or any(type(n) is not int or n < 1 for n in numbers):
        text = one_line(repr(buckets), 80)
        raise UserError(f"buckets={text}: sizes must be positive integers")
    return every


# -- outputs ---------------------------------------------------------------------------


def shapes_of(output: Any) -> Shapes:
    """The shapes of an output's tensors, in a fixed order."""
    return tuple(tuple(tensor.shape) for _, tensor in _tensors(output))


def cut_to(output: Any, shapes: Shapes) -> Any:
    """Cuts the tensors of an output to these shapes.

    Raises `Stopped` if the output has other tensors, or smaller ones.
    """
    tensors = list(_tensors(output))
    if len(tensors) != len(shapes):
        raise _stopped(
            f"the step returns {len(tensors)} tensors with padding, {len(shapes)}"
            " without"
        )
    by_tensor = {}
    for (label, tensor), shape in zip(tensors, shapes, strict=True):
        if len(shape) != tensor.dim() or any(map(int.__gt__, shape, tensor.shape)):
            raise _stopped(
                f"{_shown(label)} has shape {list(shape)}, but {list(tensor.shape)}"
                " with padding"
            )
        by_tensor[id(tensor)] = shape

    def cut(tensor: Tensor) -> Tensor:
        if id(tensor) not in by_tensor:
            raise _stopped("the step returns a set of tensors")
        return _start(tensor, by_tensor[id(tensor)])

    return map_tensors(output, cut)


def _start(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The part of a tensor at its start in every dimension."""
    for dimension, size in enumerate(shape):
        tensor = tensor.narrow(dimension, 0, size)
    return tensor


def _tensors(output: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an output with labels such as `logits`, `0` or `states.3`."""
    for label, part in trees.walk(output, "", objects=True):
        if isinstance(part, Tensor):
            yield label, part


def _shown(label: str) -> str:
    return f"output {label}" if label else "the output"


def _stopped(reason: str) -> Stopped:
    return Stopped(Stop("input", f"not padded: {reason}"))
