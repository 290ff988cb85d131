"""Calls padded up to a bucket, and outputs cut back to what the call asked for.

In come arguments and what the user says of them: which dimensions of which arguments
may be padded at their end, and with what. A dimension has a name; those of one name
vary together. Nothing is padded that was not named, and nothing is cut by guessing:
by the names given for outputs, or to the shapes that eager gave for the same sizes.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchproof.records import UserError
from torchproof.runtime.cudagraph.graph_status import Stop, Stopped
from torchproof.runtime.cudagraph.output_copies import mapped
from torchproof.runtime.tensors.tree import walk

Sizes = dict[str, int]
Shapes = tuple[tuple[int, ...], ...]
Call = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True)
class Pad:
    """Dimensions of an argument that may be padded at their end, and with what.

    `dimensions` has a name for each dimension, None where it may not be padded:
    `("batch", "length")`. A number, or several, are dimensions too: they vary together
    with the same numbers of other arguments.
    """

    dimensions: int | str | Sequence[int | str | None]
    value: float | bool = 0

    def names(self) -> dict[int, str]:
        """The name of each dimension that has one."""
        given = self.dimensions
        each = (given,) if isinstance(given, int | str) else tuple(given)
        if each and all(isinstance(number, int) for number in each):
            return {int(n): f"dimension {n}" for n in each if n is not None}
        if any(isinstance(name, int) for name in each):
            raise UserError(f"{given!r}: give either names or numbers of dimensions")
        return {i: str(name) for i, name in enumerate(each) if name is not None}


@dataclass(frozen=True)
class Place:
    """A tensor of the arguments, and what may be padded of it."""

    label: str
    position: int | None  # of the argument, where it may be given without its name
    keyword: str | None
    inside: tuple[str, ...]  # keys, from the argument to the tensor
    dimensions: Mapping[int, str]
    value: float | bool

    def find(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The value there, None if there is none."""
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
        """The arguments with another tensor there; what holds it is copied."""
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
    """What may be padded in the calls of one step, and how its outputs are cut."""

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
        """From the arguments of `torchproof.graph`.

        `pad` says by name or position of an argument what may be padded; `a.b` is the
        entry b of argument a. `unpad` says the same of outputs: "" is all of them.
        """
        places = tuple(_place(str(key), spec, step) for key, spec in pad.items())
        made = cls(places)
        if not made.names:
            raise UserError('pad: name a dimension, such as {"x": ("batch", None)}')
        if unpad is None:
            return made
        outputs = {str(k): _pad(spec).names() for k, spec in unpad.items()}
        for key, dimensions in outputs.items():
            for name in dimensions.values():
                if name not in made.names:
                    raise UserError(
                        f"unpad[{key!r}] names {name!r}, which pad does not: it has "
                        f"{', '.join(made.names)}"
                    )
        return cls(places, outputs)

    def sizes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sizes | None:
        """The size of each name in a call; None if the call cannot be padded."""
        found = self._survey(args, kwargs)
        return None if isinstance(found, str) else found

    def obstacle(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Why a call cannot be padded; None if it can."""
        found = self._survey(args, kwargs)
        return found if isinstance(found, str) else None

    def _survey(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sizes | str:
        found: dict[str, tuple[int, str]] = {}
        for place, value in self._values(args, kwargs):
            told = _unfit(place, value)
            if told:
                return f"{place.label} {told}"
            for dimension, name in place.dimensions.items():
                size = value.shape[dimension]
                before, other = found.setdefault(name, (size, place.label))
                if size != before:
                    return f"{name} is {before} in {other} and {size} in {place.label}"
        absent = [name for name in self.names if name not in found]
        if absent:
            return f"no argument has {absent[0]}"
        return {name: found[name][0] for name in self.names}

    def padded(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        sizes: Sizes,
        into: Call | None = None,
    ) -> Call:
        """The call with its named tensors grown to these sizes.

        With `into`, a call of that size: its tensors are written and returned.
        """
        grown, named = list(args), dict(kwargs)
        for place, tensor in self._values(args, kwargs):
            shape = place.sized(tensor, sizes)
            buffer = None if into is None else place.find(*into)
            if buffer is None and shape == tuple(tensor.shape):
                continue
            if buffer is None:
                buffer = tensor.new_empty(shape)
            assert buffer.shape == shape, f"{place.label}: {buffer.shape}, not {shape}"
            _write(tensor, buffer, place.value)
            place.put(grown, named, buffer)
        return tuple(grown), named

    def cut(self, output: Any, sizes: Sizes, bucket: Sizes) -> Any:
        """An output of a padded call, cut by the names given for outputs.

        Raises `Stopped` where a tensor was not named or has not the bucket's size.
        """
        assert self.outputs is not None
        shapes = {}
        for label, tensor in _tensors(output):
            shape = list(tensor.shape)
            for dimension, name in self._names_of(label, tensor).items():
                if not -tensor.dim() <= dimension < tensor.dim():
                    raise _stopped(f"{_shown(label)} has no dimension for {name}")
                if shape[dimension] != bucket[name]:
                    raise _stopped(
                        f"{_shown(label)} has {shape[dimension]} where {name} is "
                        f"{bucket[name]}"
                    )
                shape[dimension] = sizes[name]
            shapes[id(tensor)] = tuple(shape)
        return _cut(output, shapes)

    def _names_of(self, label: str, tensor: Tensor) -> Mapping[int, str]:
        """What was said of an output: of itself, or of what it is a part of."""
        assert self.outputs is not None
        if not tensor.dim():
            return {}
        parts = label.split(".")
        for count in range(len(parts), -1, -1):
            found = self.outputs.get(".".join(parts[:count]))
            if found is not None:
                return found
        raise _stopped(
            f"{_shown(label)} is not in unpad: name the dimensions to cut, or give ()"
        )

    def _values(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[Place, Any]]:
        """What the call has at each place; an argument may be left out, or None."""
        for place in self.places:
            value = place.find(args, kwargs)
            if value is not None:
                yield place, value


def shapes_of(output: Any) -> Shapes:
    """The shapes of an output's tensors, in a fixed order."""
    return tuple(tuple(tensor.shape) for _, tensor in _tensors(output))


def cut_to(output: Any, shapes: Shapes) -> Any:
    """An output of a padded call, cut to the shapes that eager gave without padding.

    Raises `Stopped` where the outputs do not correspond.
    """
    found = list(_tensors(output))
    if len(found) != len(shapes):
        raise _stopped(
            f"padded, the step returns {len(found)} tensors, else {len(shapes)}"
        )
    wanted = {}
    for (label, tensor), shape in zip(found, shapes, strict=True):
        larger = len(shape) == tensor.dim() and all(
            size <= own for size, own in zip(shape, tensor.shape, strict=True)
        )
        if not larger:
            raise _stopped(
                f"{_shown(label)} is {list(shape)}, and {list(tensor.shape)} if padded"
            )
        wanted[id(tensor)] = shape
    return _cut(output, wanted)


def _pad(spec: Any) -> Pad:
    return spec if isinstance(spec, Pad) else Pad(() if spec is None else spec)


def _place(key: str, spec: Any, step: Callable[..., Any]) -> Place:
    """Where the argument is found; its name and its position mean the same."""
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
            f"pad[{key!r}]: the step has no such argument; it has {', '.join(named)}"
        )
    pad = _pad(spec)
    return Place(key, position, keyword, tuple(inside), pad.names(), pad.value)


def _parameters(step: Callable[..., Any]) -> tuple[list[str], list[str], bool]:
    """Names of positional arguments and of all, and whether it takes others too."""
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


def _unfit(place: Place, value: Any) -> str | None:
    """Why a value cannot be padded."""
    if not isinstance(value, Tensor):
        return f"is a {type(value).__name__}, not a tensor"
    if value.requires_grad:
        return "needs gradients, which padding does not pass on"
    for dimension, name in place.dimensions.items():
        if not -value.dim() <= dimension < value.dim():
            return f"has {value.dim()} dimensions, and none for {name}"
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
    """The tensor at the start of the buffer, the value in all the rest."""
    with torch.no_grad():
        region = buffer
        for dimension, size in enumerate(tensor.shape):
            rest = region.shape[dimension] - size
            if rest:
                region.narrow(dimension, size, rest).fill_(value)
                region = region.narrow(dimension, 0, size)
        region.copy_(tensor)


def _tensors(output: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an output, as `logits`, `0`, `states.3`; "" if it is one."""
    for label, part in walk(output, ""):
        if isinstance(part, Tensor):
            yield ".".join(re.findall(r"[^\[\]'.]+", label)), part


def _cut(output: Any, shapes: Mapping[int, tuple[int, ...]]) -> Any:
    """The output with the start of each tensor, of the shape given for it by its id."""

    def start(tensor: Tensor) -> Tensor:
        if id(tensor) not in shapes:
            raise _stopped("the step returns a tensor in a set")
        for dimension, size in enumerate(shapes[id(tensor)]):
            tensor = tensor.narrow(dimension, 0, size)
        return tensor

    return mapped(output, start)


def _shown(label: str) -> str:
    return f"output {label}" if label else "the output"


def _stopped(reason: str) -> Stopped:
    return Stopped(Stop("input", f"not padded: {reason}"))
