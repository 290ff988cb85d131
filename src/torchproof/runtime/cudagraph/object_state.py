"""The state of Python objects: which types are constant, and which can be compared.

An object's state is its C struct, its slots and its `__dict__`. Slots and `__dict__`
can be compared, and so can containers. For other C structs, this module lists the types
that are constant; `hidden` returns any other type, such as a numpy array.
"""

from __future__ import annotations

import collections
import functools
import struct
import sys
import types
from typing import Any

import numpy
import torch


def words(text: str) -> frozenset[str]:
    """A set of names, written without quotes and commas."""
    return frozenset(text.split())


# Constant values, compared by value.
ATOMS = (bool, int, float, complex, str, bytes, type(None))
PLAIN = (*ATOMS, torch.dtype, torch.device)
CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
CACHED: Any = type(functools.lru_cache(len))
# Constant objects that consist of references to others.
REFERRING = (
    types.MethodType,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.MappingProxyType,
    property,
    staticmethod,
    classmethod,
    tuple,
    frozenset,
)
# C types of the standard library that are constant, or do not affect a result.
_CONSTANT = words(
    """
    bool int float complex str bytes NoneType tuple frozenset range slice type module
    BaseException super ellipsis NotImplementedType code cell function method
    builtin_function_or_method wrapper_descriptor method-wrapper method_descriptor
    classmethod_descriptor getset_descriptor member_descriptor mappingproxy property
    staticmethod classmethod GenericAlias UnionType Pattern Match Decimal Context date
    time timedelta tzinfo Struct lock RLock ContextVar itemgetter partial
    _lru_cache_wrapper _lru_list_elem _tuplegetter
    """
)
_CONSTANT_MODULES = words("torch triton _abc _typing typing pybind11_builtins")
_CONSTANT_OF_NUMPY = (numpy.generic, numpy.dtype, numpy.ufunc, type(numpy.sum))
_POINTER_BYTES = struct.calcsize("P")


@functools.lru_cache(maxsize=4096)
def hidden(kind: type) -> type | None:
    """The base class whose C struct may change and cannot be compared; None if none."""
    if issubclass(kind, torch.Generator):
        return torch.Generator
    base = _stored_in_c(kind)
    if base is None or issubclass(kind, (*CONTAINERS, *_CONSTANT_OF_NUMPY)):
        return None
    module = base.__module__.partition(".")[0]
    if module in sys.stdlib_module_names or module == "builtins":
        is_constant = not _CONSTANT.isdisjoint(each.__name__ for each in base.__mro__)
    else:
        is_constant = base.__module__.startswith("numpy._core")
    if is_constant or module in _CONSTANT_MODULES or base.__name__ == "PyCapsule":
        return None
    return base


def _stored_in_c(kind: type) -> type | None:
    """The nearest base class whose C struct has more than pointers to attributes."""
    while kind is not object:
        base: type = kind.__base__  # type: ignore[assignment]
        members = [
            each
            for each in kind.__dict__.values()
            if isinstance(each, types.MemberDescriptorType)
        ]
        pointers = (
            len(members)
            + (kind.__dictoffset__ != base.__dictoffset__)
            + (kind.__weakrefoffset__ != base.__weakrefoffset__)
        )
        growth = kind.__basicsize__ - base.__basicsize__
        if kind.__itemsize__ != base.__itemsize__ or growth > _POINTER_BYTES * pointers:
            return kind
        kind = base
    return None
