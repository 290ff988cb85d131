"""What a call and an answer are made of, as JSON, so that no model code rebuilds them.

Comes in: nested lists, tuples, dicts and records of tensors and plain values. Goes out:
a form, which names the place of every tensor in a flat list, and the list itself.
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
_FORM_OF_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Unfit(Exception):
    """A value that has no form, or one of another form than was packed, in words."""


class Fields(dict[str, Any]):
    """A record such as a model's output, without its class: by name and by position."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"no field {name!r}; it has {', '.join(self)}"
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
        told = f"{label[:80]} holds itself, or is nested too deeply"
        raise Unfit(told) from None


def _flatten(value: Any, tensors: list[torch.Tensor], label: str) -> PytreeSpec:
    if isinstance(value, torch.Tensor):
        return {"tensor": _added(value, tensors)}
    if isinstance(value, _FORM_OF_NUMBERS):
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
        f"{label} is of type {type(value).__name__}; a package takes and gives tensors"
        " and plain values in lists, tuples, dicts and dataclasses"
    )


def as_tensor(value: Any) -> torch.Tensor:
    """A number that depends on sizes, as a tensor that a graph can give out."""
    kinds = {torch.SymInt: torch.int64, torch.SymBool: torch.bool}
    return torch.full((), value, dtype=kinds.get(type(value), torch.float64))


def _added(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> int:
    tensors.append(tensor)
    return len(tensors) - 1


def _fields(value: Any) -> dict[str, Any] | None:
    """What a dataclass, a named tuple or a library's output record holds."""
    if isinstance(value, type):
        return None
    if isinstance(value, Fields):
        return dict(value)
    if dataclasses.is_dataclass(value):
        if isinstance(value, Mapping):  # transformers' outputs leave out what is None
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
            raise Unfit(f"{label} has the key {key!r}; only text and numbers can be")
    return [[k, _flatten(v, tensors, f"{label}[{k!r}]")] for k, v in value.items()]


def rebuild(form: PytreeSpec, tensors: list[torch.Tensor]) -> Any:
    """The value of a form, with these tensors in it."""
    if "tensor" in form:
        return tensors[form["tensor"]]
    if "number" in form:
        return tensors[form["number"]].item()
    if "value" in form:
        return form["value"]
    if "float" in form:
        return float(form["float"])
    if "list" in form:
        return [rebuild(part, tensors) for part in form["list"]]
    if "tuple" in form:
        return tuple(rebuild(part, tensors) for part in form["tuple"])
    kind, items = (dict, form["dict"]) if "dict" in form else (Fields, form["fields"])
    return kind({key: rebuild(part, tensors) for key, part in items})


def difference(given: PytreeSpec, packed: PytreeSpec, label: str) -> str | None:
    """How a value's form differs from the one packed, in words; None if it does not."""
    if set(given) != set(packed):
        return f"{label} is {_told(given)}, and was {_told(packed)} when it was packed"
    for key, part in packed.items():
        mine = given[key]
        if key in ("list", "tuple"):
            if len(mine) != len(part):
                return f"{label} has {len(mine)} items, and had {len(part)}"
            pairs = [
                (f"{label}[{i}]", *p)
                for i, p in enumerate(zip(mine, part, strict=True))
            ]
        elif key in ("dict", "fields"):
            names, wanted = [k for k, _ in mine], [k for k, _ in part]
            if set(names) != set(wanted):
                return f"{label} has the keys {names}, and had {wanted}"
            ours = dict(mine)
            pairs = [(f"{label}[{k!r}]", ours[k], p) for k, p in part]
        elif key in ("value", "float") and (
            mine != part or type(mine) is not type(part)
        ):
            return f"{label} is {mine!r}; the package was made for {part!r} alone"
        else:
            continue
        for name, one, other in pairs:
            if (told := difference(one, other, name)) is not None:
                return told
    return None


def in_packed_order(
    given: PytreeSpec, packed: PytreeSpec, tensors: list[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """The tensors of a value in the order of the packed form, whose form it has.

    The keys of a dict may come in another order than they did at the build.
    """
    if "tensor" in packed:
        yield tensors[given["tensor"]]
    for key in ("list", "tuple"):
        for one, other in zip(given.get(key, ()), packed.get(key, ()), strict=True):
            yield from in_packed_order(one, other, tensors)
    for key in ("dict", "fields"):
        ours = dict(given.get(key, ()))
        for name, other in packed.get(key, ()):
            yield from in_packed_order(ours[name], other, tensors)


def _told(form: PytreeSpec) -> str:
    if "value" in form or "float" in form:
        return repr(form.get("value", form.get("float")))
    kind = next(iter(form))
    return {"fields": f"a {form.get('type')}", "number": "a number"}.get(
        kind, f"a {kind}"
    )


# -- calls -----------------------------------------------------------------------------


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """Of a module, its forward's; a function of C takes anything."""
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
    """A signature as JSON; defaults only where they are plain values."""
    told: list[PytreeSpec] = []
    for each in signature.parameters.values():
        entry: PytreeSpec = {"name": each.name, "kind": int(each.kind)}
        if each.default is not inspect.Parameter.empty:
            entry["default"] = (
                each.default if isinstance(each.default, _PLAIN) else None
            )
        told.append(entry)
    return told


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
    """A call's arguments by name, less those that are at their defaults."""
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
