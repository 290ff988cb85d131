"""Nested arguments and outputs as JSON, rebuilt without the code of the model.

A `Structure` has torch's own tree spec, and what is not a tensor. Records such as a
model's output become dicts whose fields are accessible by name and position.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils import _pytree

from torchproof.records import Namespace

_PLAIN = (bool, int, str, type(None))
_SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Unfit(Exception):
    """The value has no structure, or not the packed one; the message says why."""


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


_CONTAINERS = (list, tuple, dict, Fields)
_FIELDS = "torchproof.Fields"
_pytree.register_pytree_node(
    Fields,
    lambda record: (list(record.values()), list(record)),
    lambda values, names: Fields(zip(names, values, strict=True)),
    serialized_type_name=_FIELDS,
    flatten_with_keys_fn=lambda record: (
        [(_pytree.MappingKey(name), value) for name, value in record.items()],
        list(record),
    ),
)


@dataclass(frozen=True)
class Leaf:
    """A tensor, a tensor that holds a number, or a plain value.

    `value` is the index of the tensor, or the plain value; of the kind "float", the
    text of a value that JSON cannot hold.
    """

    kind: Literal["tensor", "number", "value", "float"]
    value: Any = None


@dataclass(frozen=True)
class Structure:
    """A nested value without its tensors; `spec` is torch's tree spec as JSON."""

    spec: str
    leaves: tuple[Leaf, ...]

    @functools.cached_property
    def _tree(self) -> Any:
        try:
            return _pytree.treespec_loads(self.spec)
        except Exception as error:  # whatever torch raises for another text
            name = type(error).__name__
            raise Unfit(f"{self.spec!r:.40} is no tree spec: {name}") from None

    @property
    def has_records(self) -> bool:
        return _FIELDS in self.spec

    @functools.cached_property
    def labels(self) -> list[str]:
        """The place of each leaf, such as "['x'][0]"."""
        numbered = _pytree.tree_unflatten(range(len(self.leaves)), self._tree)
        paths = _pytree.tree_flatten_with_path(numbered)[0]
        return [_pytree.keystr(path) for path, _ in paths]

    def assert_valid(self, tensors: int | None) -> None:
        """Raises `Unfit` if `rebuild` cannot take what was read from JSON.

        `tensors` is the number of tensors, or None if it is unknown.
        """
        if self._tree.num_leaves != len(self.leaves):
            raise Unfit(f"{self.spec!r:.40} has not {len(self.leaves)} leaves")
        for leaf in self.leaves:
            value = leaf.value
            if leaf.kind in ("tensor", "number"):
                is_index = type(value) is int and value >= 0
                if not is_index or (tensors is not None and value >= tensors):
                    raise Unfit(f"{value!r:.40} is no index of a tensor")
            if leaf.kind == "float" and value not in ("nan", "inf", "-inf"):
                raise Unfit(f"{value!r:.40} is not a float")

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The value with these tensors."""
        parts = [_value(leaf, tensors) for leaf in self.leaves]
        return _pytree.tree_unflatten(parts, self._tree)

    def tensors_of(self, value: Any, label: str) -> list[torch.Tensor]:
        """The tensors of another value; raises `Unfit` if its structure differs.

        The keys of a dict may have another order.
        """
        try:
            parts = self._tree.flatten_up_to(_plain(value))
        except ValueError as error:
            places = flatten(value, [], label).labels
            missing = [f"it has no {e}" for e in self.labels if e not in places]
            added = [f"it has {e}" for e in places if e not in self.labels]
            why = [*missing, *added, str(error)][0]
            raise Unfit(f"{label} differs from the one at the build: {why}") from None
        tensors: list[torch.Tensor] = []
        for part, leaf, where in zip(parts, self.leaves, self.labels, strict=True):
            here = _leaf(part, tensors, label + where)
            if here.kind != leaf.kind:
                raise Unfit(
                    f"{label}{where} is a {type(part).__name__}; the package was built"
                    f" for {_described(leaf)}"
                )
            if leaf.kind in ("value", "float") and (
                here.value != leaf.value or type(here.value) is not type(leaf.value)
            ):
                raise Unfit(
                    f"{label}{where} is {here.value!r}; the package supports only"
                    f" {leaf.value!r}"
                )
        return tensors


def flatten(value: Any, tensors: list[torch.Tensor], label: str) -> Structure:
    """The structure of a value; its tensors are added to the list."""
    try:
        pairs, spec = _pytree.tree_flatten_with_path(
            _plain(value), is_leaf=lambda part: type(part) not in _CONTAINERS
        )
    except RecursionError:
        raise Unfit(f"{label} contains itself, or is nested too deeply") from None
    leaves = (_leaf(part, tensors, label + _pytree.keystr(p)) for p, part in pairs)
    return Structure(leaves=tuple(leaves), spec=_pytree.treespec_dumps(spec))


def as_tensor(value: Any) -> torch.Tensor:
    """A number that depends on sizes, as a tensor, which a graph can return."""
    kinds = {torch.SymInt: torch.int64, torch.SymBool: torch.bool}
    return torch.full((), value, dtype=kinds.get(type(value), torch.float64))


def _leaf(value: Any, tensors: list[torch.Tensor], label: str) -> Leaf:
    if isinstance(value, (torch.Tensor, *_SYMBOLIC_NUMBERS)):
        kind: Literal["tensor", "number"] = "tensor"
        if not isinstance(value, torch.Tensor):
            kind, value = "number", as_tensor(value)
        tensors.append(value)
        return Leaf(kind, len(tensors) - 1)
    if isinstance(value, float) and not math.isfinite(value):
        return Leaf("float", repr(value))
    if isinstance(value, (*_PLAIN, float)):
        return Leaf("value", value)
    raise Unfit(
        f"{label} is a {type(value).__name__}; a package supports tensors and plain"
        " values in lists, tuples, dicts and dataclasses"
    )


def _value(leaf: Leaf, tensors: Sequence[torch.Tensor]) -> Any:
    if leaf.kind == "tensor":
        return tensors[leaf.value]
    if leaf.kind == "number":
        return tensors[leaf.value].item()
    return float(leaf.value) if leaf.kind == "float" else leaf.value


def _described(leaf: Leaf) -> str:
    return repr(leaf.value) if leaf.kind in ("value", "float") else f"a {leaf.kind}"


def _plain(value: Any) -> Any:
    """The value with records and mappings of any class as dicts."""
    if type(value) in (list, tuple, torch.Size):
        items = map(_plain, value)
        return list(items) if type(value) is list else tuple(items)
    fields = _fields(value)
    if fields is None and not isinstance(value, Mapping):
        return value
    mapping = value if fields is None else fields
    for key in mapping:
        if not isinstance(key, str | int):
            raise Unfit(f"{key!r:.40} is a key; keys must be text or integers")
    parts = {key: _plain(part) for key, part in mapping.items()}
    return parts if fields is None else Fields(parts)


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
