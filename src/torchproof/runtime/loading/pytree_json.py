"""Nested arguments and outputs as JSON, rebuilt without the code of the model.

`flatten` takes nested lists, tuples, dicts and records of tensors and plain values. It
returns a `PytreeSpec`, which has the index of every tensor in a flat list, and fills
the list. `rebuild` does the reverse.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from torchproof.records import Keywords, Namespace

_KINDS = {
    int(kind): kind
    for kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    )
}
_PLAIN = (bool, int, str, type(None))
_SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Unfit(Exception):
    """The value has no spec, or not the packed one; the message says why."""


@dataclass(frozen=True)
class PytreeSpec:
    """The structure of a value.

    `value` is the index of a tensor, or of one that holds a number, or a plain value;
    of the kind "float", the text of a value that JSON cannot hold. A container has
    `parts`, and `keys` if it is a dict or a record of the class `record`.
    """

    kind: Literal["tensor", "number", "value", "float", "list", "tuple", "dict"]
    value: Any = None
    keys: tuple[str | int, ...] = ()
    parts: tuple[PytreeSpec, ...] = ()
    record: str | None = None

    def walk(self, label: str = "") -> Iterator[tuple[str, PytreeSpec]]:
        """Yields this spec and all inside it, each with its label."""
        yield label, self
        for key, part in zip(self.names(), self.parts, strict=True):
            yield from part.walk(f"{label}[{key!r}]")

    def names(self) -> Sequence[str | int]:
        """The keys of the parts; of a list, their positions."""
        return self.keys if self.kind == "dict" else range(len(self.parts))

    def __str__(self) -> str:
        if self.kind in ("value", "float"):
            return repr(self.value)
        return f"a {self.record or self.kind}"


class Fields(dict[Any, Any]):
    """A record such as a model's output, without its class.

    Fields are accessible by name and by position.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"no field {name!r}; the fields are {', '.join(self)}"
            ) from None

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int | slice):
            return tuple(self.values())[key]
        return super().__getitem__(key)


def flatten(value: Any, tensors: list[torch.Tensor], label: str) -> PytreeSpec:
    """The form of a value; its tensors are added to the list."""
    try:
        return _flatten(value, tensors, label)
    except RecursionError:
        reason = f"{label[:80]} contains itself, or is nested too deeply"
        raise Unfit(reason) from None


def _flatten(value: Any, tensors: list[torch.Tensor], label: str) -> PytreeSpec:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return PytreeSpec("tensor", len(tensors) - 1)
    if isinstance(value, _SYMBOLIC_NUMBERS):
        tensors.append(as_tensor(value))
        return PytreeSpec("number", len(tensors) - 1)
    if isinstance(value, _PLAIN):
        return PytreeSpec("value", value)
    if isinstance(value, float):
        if math.isfinite(value):
            return PytreeSpec("value", value)
        return PytreeSpec("float", repr(value))
    fields = _fields(value)
    if fields is not None or isinstance(value, Mapping):
        items = value if fields is None else fields
        for key in items:
            if not isinstance(key, str | int):
                raise Unfit(
                    f"{label} has the key {key!r}; keys must be text or integers"
                )
        return PytreeSpec(
            "dict",
            keys=tuple(items),
            parts=tuple(
                _flatten(v, tensors, f"{label}[{k!r}]") for k, v in items.items()
            ),
            record=None if fields is None else type(value).__name__,
        )
    if type(value) in (list, tuple, torch.Size):
        parts = (_flatten(v, tensors, f"{label}[{i}]") for i, v in enumerate(value))
        return PytreeSpec(
            "list" if type(value) is list else "tuple", parts=tuple(parts)
        )
    raise Unfit(
        f"{label} is a {type(value).__name__}; a package supports tensors and plain"
        " values in lists, tuples, dicts and dataclasses"
    )


def as_tensor(value: Any) -> torch.Tensor:
    """A number that depends on sizes, as a tensor, which a graph can return."""
    kinds = {torch.SymInt: torch.int64, torch.SymBool: torch.bool}
    return torch.full((), value, dtype=kinds.get(type(value), torch.float64))


def _fields(value: Any) -> Namespace | None:
    """The fields of a dataclass, a named tuple or a library's output record."""
    if isinstance(value, type):
        return None
    if isinstance(value, Fields):
        return dict(value)
    if dataclasses.is_dataclass(value):
        # transformers' outputs omit fields that are None.
        if isinstance(value, Mapping):
            return dict(value.items())
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    return None


def rebuild(spec: PytreeSpec, tensors: Sequence[torch.Tensor]) -> Any:
    """The value that a spec describes, with these tensors."""
    if spec.kind == "tensor":
        return tensors[spec.value]
    if spec.kind == "number":
        return tensors[spec.value].item()
    if spec.kind == "value":
        return spec.value
    if spec.kind == "float":
        return float(spec.value)
    parts = [rebuild(part, tensors) for part in spec.parts]
    if spec.kind == "dict":
        named = dict(zip(spec.keys, parts, strict=True))
        return named if spec.record is None else Fields(named)
    return parts if spec.kind == "list" else tuple(parts)


def assert_valid(spec: PytreeSpec, tensors: int | None) -> None:
    """Raises `Unfit` if `rebuild` cannot take a spec that was read from JSON.

    `tensors` is the number of tensors, or None if it is unknown.
    """
    for label, part in spec.walk("form"):
        if part.kind in ("tensor", "number"):
            index = part.value
            whole = isinstance(index, int) and not isinstance(index, bool)
            if not whole or index < 0 or (tensors is not None and index >= tensors):
                raise Unfit(f"{label} has an invalid tensor index: {index!r:.40}")
        if part.kind == "float" and part.value not in ("nan", "inf", "-inf"):
            raise Unfit(f"{label} is not a float: {part.value!r:.40}")
        if part.kind == "dict" and len(part.keys) != len(part.parts):
            raise Unfit(f"{label} has {len(part.keys)} keys, {len(part.parts)} parts")


def difference(actual: PytreeSpec, packed: PytreeSpec, label: str) -> str | None:
    """How a value's spec differs from the packed one; None if it does not."""
    is_record = (actual.record is not None, packed.record is not None)
    if actual.kind != packed.kind or is_record[0] != is_record[1]:
        return f"{label} is {actual}, but was {packed} at build"
    if actual.kind in ("value", "float"):
        one, other = actual.value, packed.value
        if one != other or type(one) is not type(other):
            return f"{label} is {one!r}; the package supports only {other!r}"
    if actual.kind == "dict" and set(actual.keys) != set(packed.keys):
        keys, packed_keys = list(actual.keys), list(packed.keys)
        return f"{label} has the keys {keys}, but had {packed_keys} at build"
    if len(actual.parts) != len(packed.parts):
        count, packed_count = len(actual.parts), len(packed.parts)
        return f"{label} has {count} items, but had {packed_count} at build"
    for name, one, other in _pairs(actual, packed):
        if (reason := difference(one, other, f"{label}[{name!r}]")) is not None:
            return reason
    return None


def _pairs(
    actual: PytreeSpec, packed: PytreeSpec
) -> Iterator[tuple[str | int, PytreeSpec, PytreeSpec]]:
    """The parts of two specs in the packed order.

    The keys of a dict may have another order than at the build.
    """
    parts = dict(zip(actual.names(), actual.parts, strict=True))
    for name, part in zip(packed.names(), packed.parts, strict=True):
        yield name, parts[name], part


def in_packed_order(
    actual: PytreeSpec, packed: PytreeSpec, tensors: Sequence[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Yields the tensors of a value in the order of the packed spec."""
    if packed.kind == "tensor":
        yield tensors[actual.value]
    for _, one, other in _pairs(actual, packed):
        yield from in_packed_order(one, other, tensors)


# -- calls -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """A parameter of a signature; only a plain default value is stored."""

    name: str
    kind: int
    has_default: bool = False
    default: Any = None


@dataclass(frozen=True)
class CallSpec:
    """The signature of a packed model, and the arguments of its calls as one dict."""

    parameters: tuple[Parameter, ...]
    arguments: PytreeSpec

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        empty = inspect.Parameter.empty
        return inspect.Signature(
            [
                inspect.Parameter(
                    each.name,
                    _KINDS[each.kind],
                    default=each.default if each.has_default else empty,
                )
                for each in self.parameters
            ]
        )

    def bound(self, tensors: Sequence[torch.Tensor]) -> inspect.BoundArguments:
        """A call with these tensors."""
        arguments = rebuild(self.arguments, tensors)
        return inspect.BoundArguments(self.signature, arguments)

    def tensors_of(self, args: Sequence[Any], kwargs: Keywords) -> list[torch.Tensor]:
        """The tensors of a call in packed order; raises `Unfit` if it differs."""
        arguments = arguments_of(self.signature, args, kwargs)
        for name in (*self.arguments.keys, *arguments):
            if name not in arguments:
                raise Unfit(f"{name} is missing; the package was built with it")
            if name not in self.arguments.keys:
                raise Unfit(
                    f"{name} is not supported; the package was built without it"
                )
        tensors: list[torch.Tensor] = []
        spec = flatten_arguments(arguments, tensors)
        for name, one, other in _pairs(spec, self.arguments):
            if (reason := difference(one, other, str(name))) is not None:
                raise Unfit(reason)
        return list(in_packed_order(spec, self.arguments, tensors))


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function, or of a module's forward.

    A C function without a signature takes anything.
    """
    try:
        return inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
    except (TypeError, ValueError):
        parameter = inspect.Parameter
        return inspect.Signature(
            [
                parameter("arguments", parameter.VAR_POSITIONAL),
                parameter("keywords", parameter.VAR_KEYWORD),
            ]
        )


def parameters_of(signature: inspect.Signature) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(
            name=each.name,
            kind=int(each.kind),
            has_default=each.default is not inspect.Parameter.empty,
            default=each.default if isinstance(each.default, _PLAIN) else None,
        )
        for each in signature.parameters.values()
    )


def flatten_arguments(arguments: Keywords, tensors: list[torch.Tensor]) -> PytreeSpec:
    """The arguments of a call, by name, as one dict."""
    parts = (flatten(value, tensors, name) for name, value in arguments.items())
    return PytreeSpec("dict", keys=tuple(arguments), parts=tuple(parts))


def arguments_of(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Keywords
) -> Keywords:
    """A call's arguments by name, without those that equal their defaults."""
    bound = signature.bind(*args, **kwargs)
    return {
        name: value
        for name, value in bound.arguments.items()
        if not _at_default(signature.parameters[name], value)
    }


def _at_default(parameter: inspect.Parameter, value: Any) -> bool:
    default = parameter.default
    return (
        isinstance(value, _PLAIN)
        and type(value) is type(default)
        and (value == default)
    )
