"""Nested arguments and outputs as JSON, rebuilt without the code of the model.

`flatten` takes nested lists, tuples, dicts and records of tensors and plain values. It
returns a `PytreeSpec`, which has the index of every tensor in a flat list, and fills
the list. `rebuild` does the reverse.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

PytreeSpec = dict[str, Any]
_KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
)
_PLAIN = (bool, int, str, type(None))
_SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Unfit(Exception):
    """The value has no spec, or not the packed one; the message says why."""


class Fields(dict[str, Any]):
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
        return {"tensor": _added(value, tensors)}
    if isinstance(value, _SYMBOLIC_NUMBERS):
        return {"number": _added(as_tensor(value), tensors)}
    if isinstance(value, _PLAIN):
        return {"value": value}
    if isinstance(value, float):
        return {"value": value} if math.isfinite(value) else {"float": repr(value)}
    if (fields := _fields(value)) is not None:
        items = _items(fields, tensors, label)
        return {"fields": items, "type": type(value).__name__}
    if isinstance(value, Mapping):
        return {"dict": _items(value, tensors, label)}
    if type(value) in (list, tuple, torch.Size):
        kind = "list" if type(value) is list else "tuple"
        parts = enumerate(value)
        return {kind: [_flatten(v, tensors, f"{label}[{i}]") for i, v in parts]}
    raise Unfit(
        f"{label} is a {type(value).__name__}; a package supports tensors and plain"
        " values in lists, tuples, dicts and dataclasses"
    )


def as_tensor(value: Any) -> torch.Tensor:
    """A number that depends on sizes, as a tensor, which a graph can return."""
    kinds = {torch.SymInt: torch.int64, torch.SymBool: torch.bool}
    return torch.full((), value, dtype=kinds.get(type(value), torch.float64))


def _added(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> int:
    tensors.append(tensor)
    return len(tensors) - 1


def _fields(value: Any) -> dict[str, Any] | None:
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


def _items(
    value: Mapping[Any, Any], tensors: list[torch.Tensor], label: str
) -> list[Any]:
    for key in value:
        if not isinstance(key, str | int):
            raise Unfit(f"{label} has the key {key!r}; keys must be text or integers")
    return [[k, _flatten(v, tensors, f"{label}[{k!r}]")] for k, v in value.items()]


def rebuild(spec: PytreeSpec, tensors: list[torch.Tensor]) -> Any:
    """The value that a spec describes, with these tensors."""
    if "tensor" in spec:
        return tensors[spec["tensor"]]
    if "number" in spec:
        return tensors[spec["number"]].item()
    if "value" in spec:
        return spec["value"]
    if "float" in spec:
        return float(spec["float"])
    if "list" in spec:
        return [rebuild(part, tensors) for part in spec["list"]]
    if "tuple" in spec:
        return tuple(rebuild(part, tensors) for part in spec["tuple"])
    kind, items = (dict, spec["dict"]) if "dict" in spec else (Fields, spec["fields"])
    return kind({key: rebuild(part, tensors) for key, part in items})


def difference(actual: PytreeSpec, packed: PytreeSpec, label: str) -> str | None:
    """How a value's spec differs from the packed one; None if it does not."""
    if set(actual) != set(packed):
        return f"{label} is {_shown(actual)}, but was {_shown(packed)} at build"
    for key, part in packed.items():
        value = actual[key]
        if key in ("list", "tuple"):
            if len(value) != len(part):
                return f"{label} has {len(value)} items, but had {len(part)} at build"
            pairs = [
                (f"{label}[{i}]", *p)
                for i, p in enumerate(zip(value, part, strict=True))
            ]
        elif key in ("dict", "fields"):
            keys = [key for key, _ in value]
            packed_keys = [key for key, _ in part]
            if set(keys) != set(packed_keys):
                return f"{label} has the keys {keys}, but had {packed_keys} at build"
            values = dict(value)
            pairs = [(f"{label}[{k!r}]", values[k], p) for k, p in part]
        elif key in ("value", "float") and (
            value != part or type(value) is not type(part)
        ):
            return f"{label} is {value!r}; the package supports only {part!r}"
        else:
            continue
        for name, one, other in pairs:
            if (reason := difference(one, other, name)) is not None:
                return reason
    return None


def in_packed_order(
    actual: PytreeSpec, packed: PytreeSpec, tensors: list[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Yields the tensors of a value in the order of the packed spec.

    The keys of a dict may have another order than at the build.
    """
    if "tensor" in packed:
        yield tensors[actual["tensor"]]
    for key in ("list", "tuple"):
        for one, other in zip(actual.get(key, ()), packed.get(key, ()), strict=True):
            yield from in_packed_order(one, other, tensors)
    for key in ("dict", "fields"):
        values = dict(actual.get(key, ()))
        for name, other in packed.get(key, ()):
            yield from in_packed_order(values[name], other, tensors)


def _shown(spec: PytreeSpec) -> str:
    if "value" in spec or "float" in spec:
        return repr(spec.get("value", spec.get("float")))
    kind = next(iter(spec))
    return {"fields": f"a {spec.get('type')}", "number": "a number"}.get(
        kind, f"a {kind}"
    )


# -- calls -----------------------------------------------------------------------------


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


def parameters_of(signature: inspect.Signature) -> list[PytreeSpec]:
    """A signature as JSON; only plain default values are stored."""
    parameters: list[PytreeSpec] = []
    for each in signature.parameters.values():
        entry: PytreeSpec = {"name": each.name, "kind": int(each.kind)}
        if each.default is not inspect.Parameter.empty:
            entry["default"] = (
                each.default if isinstance(each.default, _PLAIN) else None
            )
        parameters.append(entry)
    return parameters


def signature_from(parameters: list[PytreeSpec]) -> inspect.Signature:
    kinds = {int(kind): kind for kind in _KINDS}
    empty = inspect.Parameter.empty
    return inspect.Signature(
        [
            inspect.Parameter(
                each["name"], kinds[each["kind"]], default=each.get("default", empty)
            )
            for each in parameters
        ]
    )


def arguments_of(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
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
