"""The state of Python objects: which types are constant, and which can be compared.

An object's state is its C struct, its slots and its `__dict__`. Slots and `__dict__`
can be compared. For C structs, this module lists the types that are constant and those
that can be compared by value; `hidden` returns any other type.
"""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import datetime
import decimal
import functools
import operator
import re
import struct
import threading
import types
import weakref
from typing import Any

import numpy


def words(text: str) -> frozenset[str]:
    """A set of names, written without quotes and commas."""
    return frozenset(text.split())


# Constant values, compared by value.
ATOMS = (bool, int, float, complex, str, bytes, type(None))
# Attributes of tensors with hooks that a backward runs.
TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
BYTES = (bytearray, array.array, memoryview, numpy.ndarray)
NUMBERS_IN_C = (ctypes.Structure, ctypes.Union, ctypes.Array)
_POINTERS = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_wchar_p, ctypes.py_object)
_FIELD: Any = type(collections.namedtuple("_Field", "value").value)  # type: ignore[attr-defined]


class _Structure(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int),)


_FIELD_IN_C: Any = type(_Structure.number)
_LRU: Any = type(functools.lru_cache(len))
CACHED: tuple[type, ...] = (_LRU,)
GETTERS = (operator.attrgetter, operator.methodcaller)
# Types whose C struct is constant, or does not affect a result.
_CONSTANT: tuple[type, ...] = (
    *ATOMS,
    tuple,
    frozenset,
    range,
    slice,
    type,
    types.ModuleType,
    BaseException,
    super,
    type(...),
    type(NotImplemented),
    types.CodeType,
    types.CellType,
    property,
    staticmethod,
    classmethod,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.GenericAlias,
    types.UnionType,
    re.Pattern,
    re.Match,
    decimal.Decimal,
    decimal.Context,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    struct.Struct,
    type(threading.Lock()),
    type(threading.RLock()),
    contextvars.ContextVar,
    contextvars.Context,
    operator.itemgetter,
    *GETTERS,
    numpy.generic,
    numpy.dtype,
    numpy.ufunc,
    type(numpy.sum),
    functools.partial,
    _LRU,
    types.MappingProxyType,
    weakref.ref,
    threading.local,
    _FIELD,
    _FIELD_IN_C,
)
_WATCHED = (*CONTAINERS, *BYTES, *NUMBERS_IN_C)
_CONSTANT_MODULES = (
    "torch",
    "triton",
    "_abc",
    "_typing",
    "typing",
    "pybind11_builtins",
)
_POINTER_BYTES = struct.calcsize("P")


@functools.lru_cache(maxsize=4096)
def hidden(kind: type) -> type | None:
    """The base class whose C struct may change and cannot be compared; None if none."""
    base = _stored_in_c(kind)
    if base is None or issubclass(base, _CONSTANT):
        return None
    if issubclass(kind, _WATCHED):
        return None
    if issubclass(kind, ctypes._SimpleCData):
        return base if issubclass(kind, _POINTERS) else None
    if base.__module__.split(".")[0] in _CONSTANT_MODULES:
        return None
    if base.__name__ == "PyCapsule" or base.__module__.startswith("numpy._core"):
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


def data_of(value: Any) -> tuple[Any, ...]:
    """The bytes of an array or buffer, with their shape and type."""
    if isinstance(value, numpy.ndarray):
        # Not by a method of a subclass, such as a masked array.
        return value.shape, value.dtype, numpy.ndarray.tobytes(value)
    if isinstance(value, array.array):
        return value.typecode, array.array.tobytes(value)
    if isinstance(value, memoryview):
        return value.format, value.shape, value.tobytes()
    return (bytes(memoryview(value)),)
