"""Pads calls up to a bucket, and cuts outputs back to the size of the call.

Takes the arguments of a call and the user's declaration: which dimensions of which
arguments may be padded at their end, and with what value. Dimensions of the same name
vary together. Only declared dimensions are padded. Outputs are cut by the declared
names, or to the shapes that eager returned for the same sizes; nothing is guessed.
"""

from __future__ import annotations

import copy
import inspect
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchproof.records import JsonObject, UserError, one_line
from torchproof.runtime.cudagraph.call_inputs import Call, map_tensors
from torchproof.runtime.cudagraph.graph_status import Stop, Stopped
from torchproof.torch_private import trees

Size = tuple[int, ...]  # one number for each name
Sizes = dict[str, int]
Shapes = tuple[tuple[int, ...], ...]


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

    position: int | None  # of the argument, if it may be positional
    keyword: str | None
    inside: tuple[str, ...]  # the keys from the argument to the tensor
    dimensions: Mapping[int, str]
    value: float | bool

    @classmethod
    def parse(cls, key: str, spec: Any, step: Callable[..., Any]) -> Place:
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
        return cls(position, keyword, tuple(inside), pad.names(), pad.value)

    def path(self, call: Call) -> tuple[int | str, ...] | None:
        """The keys that lead from the call to the tensor; None if it is not given."""
        args, kwargs = call
        if self.keyword is not None and self.keyword in kwargs:
            return 1, self.keyword, *self.inside
        if self.position is not None and self.position < len(args):
            return 0, self.position, *self.inside
        return None

    def accepts(self, value: Any) -> bool:
        """Whether a value can be padded."""
        return (
            isinstance(value, Tensor)
            and not value.requires_grad
            and all(-value.dim() <= d < value.dim() for d in self.dimensions)
            and _holds(value.dtype, self.value)
        )

    def padded(self, tensor: Tensor, sizes: Sizes) -> Tensor:
        shape = list(tensor.shape)
        for dimension, name in self.dimensions.items():
            shape[dimension] = sizes[name]
        with torch.no_grad():
            result = tensor.new_full(shape, self.value)
            _start(result, tensor.shape).copy_(tensor)
        return result


def _part(value: Any, key: int | str) -> Any:
    if isinstance(value, Mapping):
        return value.get(key)
    if isinstance(value, list | tuple) and str(key).isdigit():
        return value[int(key)] if int(key) < len(value) else None
    return None


def _with(value: Any, path: Sequence[int | str], tensor: Tensor) -> Any:
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
        places = tuple(Place.parse(str(key), spec, step) for key, spec in pad.items())
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

    def sizes(self, call: Call) -> Sizes | None:
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

    def padded(self, call: Call, sizes: Sizes) -> Call:
        """The call with its declared tensors padded to these sizes."""
        for place, path, tensor in self._values(call):
            call = _with(call, path, place.padded(tensor, sizes))
        return call

    def _values(self, call: Call) -> Iterator[tuple[Place, tuple[int | str, ...], Any]]:
        """The value at each place; skips arguments that are missing or None."""
        for place in self.places:
            if (path := place.path(call)) is not None:
                value: Any = call
                for key in path:
                    value = _part(value, key)
                if value is not None:
                    yield place, path, value

    def cut(self, output: Any, sizes: Sizes, bucket: Sizes) -> Any:
        """Cuts the output of a padded call by the names in `unpad`.

        Raises `Stopped` if a tensor is not in `unpad` or does not have the bucket's
        size.
        """
        shapes = []
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
            shapes.append(tuple(shape))
        return cut_to(output, tuple(shapes))

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


def _pad(spec: Any) -> Pad:
    return spec if isinstance(spec, Pad) else Pad(() if spec is None else spec)


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


def _holds(dtype: torch.dtype, value: float | bool) -> bool:
    if dtype is torch.bool:
        return value in (0, 1)
    if dtype.is_floating_point or dtype.is_complex:
        return True
    limits = torch.iinfo(dtype)
    return float(value).is_integer() and limits.min <= value <= limits.max


def _shown(label: str) -> str:
    return f"output {label}" if label else "the output"


def _stopped(reason: str) -> Stopped:
    return Stopped(Stop("input", f"not padded: {reason}"))


# -- buckets ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """A call, its bucket, and the call padded to the size of the bucket."""

    sizes: Sizes
    bucket: Sizes
    padded_call: Call

    @property
    def padded(self) -> bool:
        return self.sizes != self.bucket


@dataclass
class Hits:
    """The calls that the recording of one bucket answered, and their work.

    Work is the product of a size.
    """

    calls: int = 0
    useful_work: int = 0
    padded_work: int = 0

    def add(self, size: Size, bucket: Size) -> None:
        self.calls += 1
        self.useful_work += math.prod(size)
        self.padded_work += math.prod(bucket)

    @property
    def waste(self) -> float | None:
        """The work on padding relative to the useful work; None without calls."""
        return self.padded_work / self.useful_work - 1 if self.useful_work else None


class Padder:
    """Decides which calls are padded to which bucket, and counts the waste."""

    def __init__(self, padding: Padding, buckets: Iterable[int | Size]) -> None:
        sizes = _bucket_sizes(buckets)
        if any(len(size) != len(padding.names) for size in sizes):
            names = ", ".join(padding.names)
            raise UserError(f"buckets: each needs one number for each of {names}")
        self.padding = padding
        # The cheapest first.
        ordered = sorted(sizes, key=lambda size: (math.prod(size), size))
        self._hits = {size: Hits() for size in ordered}
        self._too_large: Counter[Size] = Counter()  # calls that fit no bucket

    @classmethod
    def parse(
        cls, step: Callable[..., Any], pad: Any, unpad: Any, sizes: Any
    ) -> Padder | None:
        """The padder for the arguments of `torchproof.graph`; None without padding."""
        if pad is None:
            if unpad is not None or sizes is not None:
                raise UserError(
                    "unpad and buckets need pad, which names the dimensions to pad"
                )
            return None
        if sizes is None:
            raise UserError("pad needs buckets, the sizes to pad to")
        for name, value in {"pad": pad, "unpad": unpad or {}}.items():
            if not isinstance(value, Mapping):
                kind = type(value).__name__
                raise UserError(f"{name}: must be a dict of dimensions, not a {kind}")
        return cls(Padding.parse(pad, unpad, step), sizes)

    def fit(self, call: Call) -> Fit | None:
        """The bucket and the padded call; None if no bucket fits."""
        sizes = self.padding.sizes(call)
        if sizes is None or not all(sizes.values()):
            return None
        size = tuple(sizes.values())
        bucket = self._bucket_for(size)
        if bucket is None:
            self._too_large[size] += 1
            return None
        if bucket == size:
            return Fit(sizes, sizes, call)
        bucket_sizes = dict(zip(self.padding.names, bucket, strict=True))
        return Fit(sizes, bucket_sizes, self.padding.padded(call, bucket_sizes))

    def _bucket_for(self, size: Size) -> Size | None:
        """The cheapest bucket that is large enough."""
        for bucket in self._hits:
            if all(map(operator.ge, bucket, size)):
                return bucket
        return None

    def cut(self, output: Any, fit: Fit, shapes: Shapes) -> Any:
        """Cuts the output to the size of the call."""
        if self.padding.outputs is not None:
            return self.padding.cut(output, fit.sizes, fit.bucket)
        return cut_to(output, shapes)

    def count(self, fit: Fit) -> None:
        """Counts a call that the recording of its bucket answered."""
        bucket = tuple(fit.bucket.values())
        self._hits[bucket].add(tuple(fit.sizes.values()), bucket)

    def to_json(self) -> JsonObject:
        every = self._hits.values()
        total = Hits(
            sum(each.calls for each in every),
            sum(each.useful_work for each in every),
            sum(each.padded_work for each in every),
        )
        return {
            "names": [*self.padding.names],
            "buckets": [
                {"size": [*size], "hits": hits.calls, "waste": hits.waste}
                for size, hits in self._hits.items()
            ],
            "left_out": [
                {"size": [*size], "calls": calls}
                for size, calls in self._too_large.items()
            ],
            "waste": total.waste,
        }


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
