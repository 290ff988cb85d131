"""The arguments of a package and its input tensors, checked at each call.

Takes the tensors of a call, returns them in the memory layout that the package needs,
or raises `Unfit`. The code of a package checks nothing: with unsupported sizes it would
read out of bounds or compute garbage, and AOTInductor's loader drops arguments that are
no tensors.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from torchproof.records import Keywords
from torchproof.torch_private import Structure, Unfit

# What a condition may use besides sizes. A pack is trusted before it is read.
_FUNCTIONS = {"Max": max, "Min": min, "Mod": operator.mod, "__builtins__": {}}


@dataclass(frozen=True)
class CallSpec:
    """The arguments of a package as one dict, by name as far as they have one.

    `names` are those of the parameters that may be passed by position; `positional` is
    how many arguments were passed so at the build.
    """

    names: tuple[str, ...]
    positional: int
    arguments: Structure

    def split(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], Keywords]:
        """A call with these tensors."""
        arguments = self.arguments.rebuild(tensors)
        count = range(self.positional)
        return [arguments.pop(key_of(i, self.names)) for i in count], arguments

    def tensors_of(self, args: Sequence[Any], kwargs: Keywords) -> list[torch.Tensor]:
        """The tensors of a call in packed order; raises `Unfit` if it differs."""
        arguments = by_name(args, kwargs, self.names)
        return self.arguments.tensors_of(arguments, "the call")


def key_of(index: int, names: Sequence[str]) -> str | int:
    return names[index] if index < len(names) else index


def by_name(
    args: Sequence[Any], kwargs: Keywords, names: Sequence[str]
) -> dict[str | int, Any]:
    """The arguments of a call as one dict."""
    arguments = {key_of(index, names): value for index, value in enumerate(args)}
    for name, value in kwargs.items():
        if name in arguments:
            raise Unfit(f"{name} is passed twice")
        arguments[name] = value
    return arguments


@dataclass(frozen=True)
class TensorSpec:
    """One input tensor.

    A size is a number or a text: a variable such as `n`, or an expression over
    variables. `order` lists the dimensions from the largest stride to the smallest.
    """

    label: str
    dtype: str
    device: str
    sizes: tuple[int | str, ...]
    order: tuple[int, ...]
    written: bool = False

    def laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself if it has the layout of the build, else a copy."""
        strides, step = [0] * tensor.dim(), 1
        for dimension in reversed(self.order):
            strides[dimension] = step
            step *= max(1, tensor.shape[dimension])
        triples = zip(tensor.shape, tensor.stride(), strides, strict=True)
        same = all(size <= 1 or actual == wanted for size, actual, wanted in triples)
        # Compiled vector instructions need addresses aligned to 16 bytes.
        aligned = tensor.data_ptr() % 16 == 0
        if same and aligned and not tensor.is_conj() | tensor.is_neg():
            return tensor.detach()
        copy = torch.empty_strided(
            tensor.shape, strides, dtype=tensor.dtype, device=tensor.device
        )
        return copy.copy_(tensor.detach())


@dataclass(frozen=True)
class Range:
    """The values that a size variable may have."""

    low: int = 0
    high: int | None = None

    def __str__(self) -> str:
        if self.high is None:
            return f"{self.low} or more"
        return f"{self.low} to {self.high}"

    def __contains__(self, size: object) -> bool:
        assert isinstance(size, int)
        return self.low <= size and (self.high is None or size <= self.high)


@dataclass(frozen=True)
class InputSpec:
    """All input tensors, and the conditions between their sizes.

    `conditions` are comparisons over `sizeI_D`, dimension D of tensor I.
    """

    tensors: tuple[TensorSpec, ...]
    ranges: Mapping[str, Range] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line, such as "x float32[n, 8]; n is 2 or more"."""
        tensors = (
            f"{t.label} {t.dtype}[{', '.join(map(str, t.sizes))}]" for t in self.tensors
        )
        ranges = (f"{n} is {r}" for n, r in self.ranges.items() if n.isidentifier())
        conditions = [self._in_words(each) for each in self.conditions]
        if len(conditions) > 2:
            conditions = [f"{len(conditions)} conditions on sizes"]
        return "; ".join([", ".join(tensors), *ranges, *conditions])

    def assert_valid(self) -> None:
        """Raises `Unfit` if a spec that was read from JSON is no spec."""
        for spec in self.tensors:
            if sorted(spec.order) != list(range(len(spec.sizes))):
                raise Unfit(f"the order of the dimensions of {spec.label} is invalid")
        sizes = [s for t in self.tensors for s in t.sizes if isinstance(s, str)]
        for text in (*self.conditions, *sizes):
            try:
                _compiled(text)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                raise Unfit(f"{text!r:.40} is not a condition on sizes") from None

    def assert_fits(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor, spec in zip(tensors, self.tensors, strict=True):
            _assert_alike(tensor, spec)
        self.assert_sizes([tuple(t.shape) for t in tensors])

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        try:
            self.assert_fits(tensors)
        except Unfit:
            return False
        return True

    def assert_sizes(self, shapes: Sequence[Sequence[int]]) -> None:
        """Raises `Unfit` for the first unsupported size; the dimensions must match."""
        variables: dict[str, int] = {}
        for spec, shape in zip(self.tensors, shapes, strict=True):
            for size, expected in zip(shape, spec.sizes, strict=True):
                if isinstance(expected, str) and expected.isidentifier():
                    variables.setdefault(expected, size)
        for spec, shape in zip(self.tensors, shapes, strict=True):
            for dimension, size in enumerate(shape):
                self._assert_size(spec, dimension, size, variables)
        sizes = {
            f"size{i}_{d}": size
            for i, shape in enumerate(shapes)
            for d, size in enumerate(shape)
        }
        for condition in self.conditions:
            if not evaluate(condition, sizes):
                raise Unfit(f"the sizes must satisfy {self._in_words(condition)}")

    def _assert_size(
        self, spec: TensorSpec, dimension: int, size: int, variables: Mapping[str, int]
    ) -> None:
        expected = spec.sizes[dimension]
        where = f"{spec.label} has size {size} in dimension {dimension}"
        if isinstance(expected, int):
            if size != expected:
                raise Unfit(f"{where}; it must be {expected}")
            return
        if expected in self.ranges and size not in self.ranges[expected]:
            raise Unfit(f"{where}; it must be {self.ranges[expected]}")
        if (required := evaluate(expected, variables)) != size:
            source = self._first_with(expected) if expected.isidentifier() else expected
            raise Unfit(f"{where}; it must be {required}, to match {source}")

    def _first_with(self, variable: str) -> str:
        return next(
            f"dimension {t.sizes.index(variable)} of {t.label}"
            for t in self.tensors
            if variable in t.sizes
        )

    def _in_words(self, condition: str) -> str:
        for i, spec in enumerate(self.tensors):
            for d in range(len(spec.sizes)):
                condition = condition.replace(
                    f"size{i}_{d} ", f"{spec.label}.size({d}) "
                )
                condition = condition.replace(
                    f"size{i}_{d})", f"{spec.label}.size({d}))"
                )
        return condition


def order_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The dimensions by stride; in natural order if the tensor has gaps or overlaps."""
    dimensions = range(tensor.dim())
    strides = tensor.stride()
    order = sorted(dimensions, key=lambda d: (-strides[d], d))
    step = 1
    for dimension in reversed(order):
        if tensor.size(dimension) > 1:
            if tensor.stride(dimension) != step:
                return tuple(dimensions)
            step *= tensor.size(dimension)
    return tuple(order)


def _assert_alike(tensor: torch.Tensor, spec: TensorSpec) -> None:
    if tensor.layout is not torch.strided or type(tensor) not in _PLAIN_TENSORS:
        raise Unfit(f"{spec.label} is not a plain dense tensor")
    if str(tensor.dtype) != f"torch.{spec.dtype}":
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise Unfit(f"{spec.label} has dtype {dtype}; it must be {spec.dtype}")
    if spec.device not in (str(tensor.device), tensor.device.type):
        raise Unfit(f"{spec.label} is on {tensor.device}; it must be on {spec.device}")
    if tensor.dim() != len(spec.sizes):
        raise Unfit(
            f"{spec.label} has {tensor.dim()} dimensions; it must have"
            f" {len(spec.sizes)}"
        )


_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def evaluate(text: str, names: Mapping[str, int]) -> Any:
    """The value of arithmetic and comparisons over sizes."""
    return eval(_compiled(text), dict(_FUNCTIONS), dict(names))


@functools.cache
def _compiled(text: str) -> CodeType:
    return compile(text, "<condition on sizes>", "eval")
