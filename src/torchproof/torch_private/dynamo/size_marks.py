"""Converts the marks on a tensor's sizes, such as by `mark_dynamic`, to JSON and back.

Dynamo stores the marks as attributes of the tensor. A copy of the tensor has none.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from torchproof.records import Namespace

_PREFIXES = ("_dynamo_", "_has_dynamo_", "_specialize_on")


def marks_of(tensor: torch.Tensor) -> Namespace:
    """All marks by attribute name; `ValueError` if one has no JSON form."""
    attributes = getattr(tensor, "__dict__", {})
    return {k: _plain(k, v) for k, v in attributes.items() if k.startswith(_PREFIXES)}


def put_marks(tensor: torch.Tensor, marks: Namespace) -> torch.Tensor:
    for name, encoded in marks.items():
        setattr(tensor, name, _value(encoded))
    return tensor


def _plain(name: str, value: Any) -> Any:
    if type(value).__name__ == "_DimRange":
        return {"range": [value.dim, value.min, value.max]}
    if isinstance(value, set | list | tuple):
        parts = sorted(value, key=str) if isinstance(value, set) else value
        return {type(value).__name__: [_plain(name, part) for part in parts]}
    if isinstance(value, dict):
        return {"dict": [[_plain(name, k), _plain(name, v)] for k, v in value.items()]}
    if value is None or isinstance(value, bool | int | str):
        return value
    raise ValueError(f"{name} holds a {type(value).__name__}")


def _value(encoded: Any) -> Any:
    if not isinstance(encoded, dict):
        return encoded
    ((kind, parts),) = encoded.items()
    if kind == "range":
        decorators = importlib.import_module("torch._dynamo.decorators")
        return decorators._DimRange(*parts)
    if kind == "dict":
        return {_value(k): _value(v) for k, v in parts}
    make = {"set": set, "list": list, "tuple": tuple}[kind]
    return make(_value(part) for part in parts)
