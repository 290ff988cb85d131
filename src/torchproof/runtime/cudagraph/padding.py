"""Pads calls up to a bucket, and cuts outputs back to the size of the call.

Takes the arguments of a call and the user's declaration: which dimensions of which
arguments may be padded at their end, and with what value. Dimensions of the same name
vary together. Only declared dimensions are padded. Outputs are cut by the declared
names, or to the shapes that eager returned for the same sizes; nothing is guessed.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchproof.records import UserError
from torchproof.runtime.cudagraph.graph_status import Stop, Stopped
from torchproof.runtime.cudagraph.output_copies import map_tensors
from torchproof.torch_private import trees

Sizes = dict[str, int]
Shapes = tuple[tuple[int, ...], ...]
Call = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True)
class Pad:
    """The dimensions of an argument that may be padded at their end, and the value.

    `dimensions` has a name for each dimension, such as `("batch", "length")`, and None
    for a dimension that must not be padded. Dimensions can also be given as numbers,
    which vary together with the same numbers of other arguments.
    """

    dimensions: int | str | Sequence[int | str | None]
    value: float | bool = 0

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

    label: str
    position: int | None  # of the argument, if it may be positional
    keyword: str | None
    inside: tuple[str, ...]  # the keys from the argument to the tensor
    dimensions: Mapping[int, str]
    value: float | bool

    def find(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The value at this place; None if there is none."""
        if self.keyword is not None and self.keyword in kwargs:
            value = kwargs[self.keyword]
        elif self.position is not None and self.position < len(args):
            value = args[self.position]
        else:
            return None
        for key in self.inside:
            value = _part(value, key)
        return value

    def put(self, args: list[Any], kwargs: dict[str, Any], tensor: Tensor) -> None:
        """Replaces the tensor at this place; copies the containers around it."""
        if self.keyword is not None and self.keyword in kwargs:
            kwargs[self.keyword] = _with(kwargs[self.keyword], self.inside, tensor)
        else:
            assert self.position is not None
            args[self.position] = _with(args[self.position], self.inside, tensor)

    def sized(self, tensor: Tensor, sizes: Sizes) -> tuple[int, ...]:
        shape = list(tensor.shape)
        for dimension, name in self.dimensions.items():
            shape[dimension] = sizes[name]
        return tuple(shape)


def _part(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(key)
    if isinstance(value, list | tuple) and key.isdigit() and int(key) < len(value):
        return value[int(key)]
    return None


def _with(value: Any, inside: Sequence[str], tensor: Tensor) -> Any:
    if not inside:
        return tensor
    part = _with(_part(value, inside[0]), inside[1:], tensor)
    if isinstance(value, tuple):
        parts = [*value]
        parts[int(inside[0])] = part
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    again = copy.copy(value)
    again[inside[0] if isinstance(value, Mapping) else int(inside[0])] = part
    return again


@dataclass(frozen=True)
class Padding:
    """The dimensions that may be padded in calls, and how outputs are cut."""

    places: tuple[Place, ...]
    outputs: Mapping[str, Mapping[int, str]] | None = None
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        named = [name for place in self.places for name in place.dimensions.values()]
        object.__setattr__(self, "names", tuple(dict.fromkeys(named)))

    @classmethod
    def parse(
        cls,
        pad: Mapping[str | int, Any],
        unpad: Mapping[str | int, Any] | None,
        step: Callable[..., Any],
    ) -> Padding:
        """The padding for the arguments of `torchproof.graph`.

        `pad` maps the name or position of an argument to its dimensions; `a.b` is the
        entry b of argument a. `unpad` does the same for outputs; "" means all of them.
        """
        places = tuple(_place(str(key), spec, step) for key, spec in pad.items())
        padding = cls(places)
        if not padding.names:
            raise UserError(
                'pad: name at least one dimension, such as {"x": ("batch", None)}'
            )
        if unpad is None:
            return padding
        outputs = {str(k): _pad(spec).names() for k, spec in unpad.items()}
        for key, dimensions in outputs.items():
            for name in dimensions.values():
                if name not in padding.names:
                    raise UserError(
                        f"unpad[{key!r}] names {name!r}, which is not in pad: pad has "
                        f"{', '.join(padding.names)}"
                    )
        return cls(places, outputs)

    def sizes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sizes | None:
        """The size of each name in a call; None if the call cannot be padded."""
        sizes = self._survey(args, kwargs)
        return None if isinstance(sizes, str) else sizes

    def obstacle(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Why a call cannot be padded; None if it can."""
        sizes = self._survey(args, kwargs)
        return sizes if isinstance(sizes, str) else None

    def _survey(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sizes | str:
        """The size of each name, or why the call cannot be padded."""
        sizes: dict[str, tuple[int, str]] = {}
        for place, value in self._values(args, kwargs):
            reason = _why_unfit(place, value)
            if reason:
                return f"{place.label} {reason}"
            for dimension, name in place.dimensions.items():
                size = value.shape[dimension]
                before, other = sizes.setdefault(name, (size, place.label))
                if size != before:
                    return f"{name} is {before} in {other}, but {size} in {place.label}"
        absent = [name for name in self.names if name not in sizes]
        if absent:
            return f"no argument has the dimension {absent[0]}"
        return {name: sizes[name][0] for name in self.names}

    def padded(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        sizes: Sizes,
        into: Call | None = None,
    ) -> Call:
        """The call with its declared tensors padded to these sizes.

        With `into`, a call of that size, its tensors are overwritten and returned.
        """
        padded_args = list(args)
        padded_kwargs = dict(kwargs)
        for place, tensor in self._values(args, kwargs):
            shape = place.sized(tensor, sizes)
            buffer = None if into is None else place.find(*into)
            if buffer is None and shape == tuple(tensor.shape):
                continue
            if buffer is None:
                buffer = tensor.new_empty(shape)
            assert buffer.shape == shape, f"{place.label}: {buffer.shape}, not {shape}"
            _write(tensor, buffer, place.value)
            place.put(padded_args, padded_kwargs, buffer)
        return tuple(padded_args), padded_kwargs

    def cut(self, output: Any, sizes: Sizes, bucket: Sizes) -> Any:
        """Cuts the output of a padded call by the names in `unpad`.

        Raises `Stopped` if a tensor is not in `unpad` or does not have the bucket's
        size.
        """
        assert self.outputs is not None
        shapes = {}
        for label, tensor in _tensors(output):
            shape = list(tensor.shape)
            for dimension, name in self._names_of(label, tensor).items():
                if not -tensor.dim() <= dimension < tensor.dim():
                    raise _stopped(f"{_shown(label)} has no dimension {name}")
                if shape[dimension] != bucket[name]:
                    raise _stopped(
                        f"{_shown(label)} has size {shape[dimension]} where {name} is "
                        f"{bucket[name]}"
                    )
                shape[dimension] = sizes[name]
            shapes[id(tensor)] = tuple(shape)
        return _cut(output, shapes)

    def _names_of(self, label: str, tensor: Tensor) -> Mapping[int, str]:
        """The declared dimensions of an output, or of a container around it."""
        assert self.outputs is not None
        if not tensor.dim():
            return {}
        parts = label.split(".")
        for count in range(len(parts), -1, -1):
            dimensions = self.outputs.get(".".join(parts[:count]))
            if dimensions is not None:
                return dimensions
        raise _stopped(
            f"{_shown(label)} is not in unpad: name the dimensions to cut, or ()"
        )

    def _values(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[Place, Any]]:
        """The value at each place; skips arguments that are missing or None."""
        for place in self.places:
            value = place.find(args, kwargs)
            if value is not None:
                yield place, value


def shapes_of(output: Any) -> Shapes:
    """The shapes of an output's tensors, in a fixed order."""
    return tuple(tuple(tensor.shape) for _, tensor in _tensors(output))


def cut_to(output: Any, shapes: Shapes) -> Any:
    """Cuts the output of a padded call to the shapes that eager returned unpadded.

    Raises `Stopped` if the outputs do not correspond.
    """
    tensors = list(_tensors(output))
    if len(tensors) != len(shapes):
        raise _stopped(
            f"the step returns {len(tensors)} tensors with padding, {len(shapes)}"
            " without"
        )
    shapes_by_tensor = {}
    for (label, tensor), shape in zip(tensors, shapes, strict=True):
        larger = len(shape) == tensor.dim() and all(
            size <= padded for size, padded in zip(shape, tensor.shape, strict=True)
        )
        if not larger:
            raise _stopped(
                f"{_shown(label)} has shape {list(shape)}, but {list(tensor.shape)}"
                " with padding"
            )
        shapes_by_tensor[id(tensor)] = shape
    return _cut(output, shapes_by_tensor)


def _pad(spec: Any) -> Pad:
    return spec if isinstance(spec, Pad) else Pad(() if spec is None else spec)


def _place(key: str, spec: Any, step: Callable[..., Any]) -> Place:
    """The place of an argument, declared by its name or position."""
    argument, *inside = key.split(".")
    ordered, named, anything = _parameters(step)
    position: int | None = None
    keyword: str | None = argument
    if argument.isdigit():
        position = int(argument)
        keyword = ordered[position] if position < len(ordered) else None
    elif argument in ordered:
        position = ordered.index(argument)
    if not anything and (keyword is None or keyword not in named):
        raise UserError(
            f"pad[{key!r}]: the step has no such argument; its arguments are"
            f" {', '.join(named)}"
        )
    pad = _pad(spec)
    return Place(
        label=key,
        position=position,
        keyword=keyword,
        inside=tuple(inside),
        dimensions=pad.names(),
        value=pad.value,
    )


def _parameters(step: Callable[..., Any]) -> tuple[list[str], list[str], bool]:
    """The positional names, all names, and whether the step has *args or **kwargs."""
    called = step.forward if isinstance(step, nn.Module) else step
    every = inspect.signature(called).parameters.values()
    kinds = inspect.Parameter
    ordered = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    anything = any(p.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD) for p in every)
    return (
        [p.name for p in every if p.kind in ordered],
        [p.name for p in every if p.kind in (*ordered, kinds.KEYWORD_ONLY)],
        anything,
    )


def _why_unfit(place: Place, value: Any) -> str | None:
    """Why a value cannot be padded; None if it can."""
    if not isinstance(value, Tensor):
        return f"is a {type(value).__name__}, not a tensor"
    if value.requires_grad:
        return "requires a gradient, which padding does not support"
    for dimension, name in place.dimensions.items():
        if not -value.dim() <= dimension < value.dim():
            return f"has {value.dim()} dimensions, none of which is {name}"
    if not _holds(value.dtype, place.value):
        return f"is {value.dtype}, which cannot hold {place.value!r}"
    return None


def _holds(dtype: torch.dtype, value: float | bool) -> bool:
    if dtype is torch.bool:
        return value in (0, 1)
    if dtype.is_floating_point or dtype.is_complex:
        return True
    limits = torch.iinfo(dtype)
    return float(value).is_integer() and limits.min <= value <= limits.max


def _write(tensor: Tensor, buffer: Tensor, value: float | bool) -> None:
    """Copies the tensor to the start of the buffer, and fills the rest with `value`."""
    with torch.no_grad():
        region = buffer
        for dimension, size in enumerate(tensor.shape):
            rest = region.shape[dimension] - size
            if rest:
                region.narrow(dimension, size, rest).fill_(value)
                region = region.narrow(dimension, 0, size)
        region.copy_(tensor)


def _tensors(output: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an output with labels such as `logits`, `0` or `states.3`."""
    for label, part in trees.walk(output, "", objects=True):
        if isinstance(part, Tensor):
            yield label, part


def _cut(output: Any, shapes: Mapping[int, tuple[int, ...]]) -> Any:
    """The output with each tensor cut to the shape for its id."""

    def start(tensor: Tensor) -> Tensor:
        if id(tensor) not in shapes:
            raise _stopped("the step returns a set of tensors")
        for dimension, size in enumerate(shapes[id(tensor)]):
            tensor = tensor.narrow(dimension, 0, size)
        return tensor

    return map_tensors(output, start)


def _shown(label: str) -> str:
    return f"output {label}" if label else "the output"


def _stopped(reason: str) -> Stopped:
    return Stopped(Stop("input", f"not padded: {reason}"))
