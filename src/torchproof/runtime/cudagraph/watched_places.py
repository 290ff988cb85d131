"""The places whose values a snapshot compares, and how each kind of place is read.

A place is an attribute, an entry of a dict, a variable of an enclosing function, and so
on. All places of one kind are read at once, at C speed, and without running user code.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import itertools
import operator
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torchproof.records import Namespace

GONE: Any = object()
HEAP_TYPE = 1 << 9  # a flag of classes that Python code, or a library, has created
dict_of_class: Callable[[type], Any] = type.__dict__["__dict__"].__get__
mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__


def isinstance_of(value: Any, kinds: tuple[type, ...]) -> bool:
    """`isinstance` by type alone: an object's `__class__` may run user code."""
    return issubclass(type(value), kinds)


def contents(cell: types.CellType) -> Any:
    """The value of a cell; the cell itself if its variable is unassigned."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def dict_of(value: Any) -> Namespace | None:
    """An object's `__dict__`, without running code of its class."""
    kind: Any = type(value)
    if not has_plain_dict(kind):
        return None
    namespace = object.__getattribute__(value, "__dict__")
    return namespace if type(namespace) is dict else None


@functools.lru_cache(maxsize=4096)
def has_plain_dict(kind: type) -> bool:
    for each in mro_of(kind):
        if "__dict__" in (namespace := dict_of_class(each)):
            plain = (types.GetSetDescriptorType, types.MemberDescriptorType)
            return isinstance(namespace["__dict__"], plain)
    return False


def in_slot(member: Any, owner: Any) -> Any:
    try:
        return member.__get__(owner)
    except AttributeError:
        return GONE


def slots_of(kind: type) -> Iterator[tuple[str, Any]]:
    """The names and members of the slots of a class and its bases."""
    for each in mro_of(kind):
        if each.__flags__ & HEAP_TYPE:
            for name, member in list(dict_of_class(each).items()):
                if type(member) is types.MemberDescriptorType:
                    yield name, member


def _is_dead(reference: weakref.ref[Any]) -> bool:
    return weakref.ref.__call__(reference) is None


def _local_items(local: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(sorted(vars(local).items()))


def identities(values: list[Any]) -> bytes:
    """The addresses of a list's items, read from the memory of the list in CPython.

    This compares thousands of objects at once, without running their code.
    """
    items = ctypes.c_void_p.from_address(id(values) + LIST_ITEMS).value
    return ctypes.string_at(items or 0, _POINTER * len(values))


_POINTER = ctypes.sizeof(ctypes.c_void_p)
# `ob_item` is the last but one field of a list object, before `allocated`.
LIST_ITEMS = list.__basicsize__ - 2 * _POINTER


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of place: `read` returns the value, or with `many` all values in it."""

    name: str
    read: Callable[..., Any]
    many: bool = False
    by_name: bool = False  # whether each name is a place of its own


TYPE = Kind("type", type)
NAMESPACE = Kind("namespace", operator.attrgetter("__dict__"))
GUARDED_NAMESPACE = Kind("namespace", object.__getattribute__)
ENTRY = Kind("entry", dict.get, by_name=True)
CLASS_ENTRY = Kind("class entry", types.MappingProxyType.get, by_name=True)
BASES = Kind("bases", mro_of)
FUNCTION = Kind("function", getattr)
CELL = Kind("cell", contents)
SLOT = Kind("slot", in_slot)
CONTEXT = Kind("context", ContextVar.get)
REFERENCE = Kind("reference", _is_dead)
LOCAL = Kind("local", _local_items, many=True)
VALUES = Kind("values", dict.values, many=True)
# The names of an object or class; only the relevant ones count as changes.
NAMES = Kind("names", iter, many=True, by_name=True)
CLASS_NAMES = Kind("names of a class", iter, many=True, by_name=True)
_DICTS = (collections.OrderedDict, dict)
_ITEMS: dict[type, Kind] = {
    kind: Kind("items", kind.__iter__, many=True)
    for kind in (*_DICTS, list, set, collections.deque, tuple, frozenset)
}


def items_of(container: Any) -> Kind:
    """How to iterate over a container without running code of its class."""
    return next(
        kind for base, kind in _ITEMS.items() if isinstance_of(container, (base,))
    )


@dataclass(frozen=True)
class Watch:
    """A place of a kind: `read(*arguments)` returns its values."""

    kind: Kind
    label: str
    owner: Any
    arguments: tuple[Any, ...]


Place = tuple[Kind, int, Any]  # kind, id of the owner, name or number
PlacedValue = tuple[Place, str, Any]  # with its label and its value


class Watches:
    """All watched places."""

    def __init__(self) -> None:
        self.every: list[Watch] = []

    def add(self, kind: Kind, label: str, owner: Any, *more: Any) -> None:
        self.every.append(Watch(kind, label, owner, (owner, *more)))

    def add_entry(self, label: str, namespace: dict[Any, Any], name: str) -> None:
        self.add(ENTRY, label, namespace, name, GONE)

    def add_container(self, label: str, container: Any) -> None:
        """The items of a list, deque or set; the keys and values of a dict."""
        self.add(items_of(container), label, container)
        if isinstance_of(container, (dict,)):
            self.add(VALUES, label, container)

    def add_slot(self, label: str, member: Any, owner: Any) -> None:
        self.every.append(Watch(SLOT, label, owner, (member, owner)))

    def add_class(self, label: str, kind: type, namespace: Any) -> None:
        self.add(BASES, label, kind)
        self.every.append(Watch(CLASS_NAMES, label, kind, (namespace,)))

    def add_class_entry(
        self, label: str, kind: type, namespace: Any, name: str
    ) -> None:
        arguments = (namespace, name, GONE)
        self.every.append(Watch(CLASS_ENTRY, label, kind, arguments))

    def add_object(self, label: str, value: Any) -> None:
        """The type of an object and the names of its attributes."""
        self.add(TYPE, label, value)
        namespace = dict_of(value)
        if namespace is not None:
            lookup: Any = type(value).__getattribute__
            if lookup is object.__getattribute__:
                self.add(NAMESPACE, label, value)
            else:  # without running it
                self.add(GUARDED_NAMESPACE, label, value, "__dict__")
            self.add_names(label, value, namespace)

    def add_names(self, label: str, value: Any, namespace: Namespace) -> None:
        self.every.append(Watch(NAMES, label, value, (namespace,)))

    def reader(self) -> Callable[[], list[Any]]:
        """Returns a function that collects all current values.

        The values of a container end with a mark; an empty one is its length.
        """
        groups: dict[Kind, list[tuple[Any, ...]]] = {}
        empty: dict[int, Any] = {}
        for each in self.every:
            container = each.arguments[0]
            if each.kind.many and type(container) in _ITEMS and not container:
                empty[id(container)] = container
            else:
                groups.setdefault(each.kind, []).append(each.arguments)
        columns = [(kind, [*zip(*each, strict=True)]) for kind, each in groups.items()]
        single = [(kind.read, each) for kind, each in columns if not kind.many]
        many = [(kind.read, each) for kind, each in columns if kind.many]
        flat, end = itertools.chain.from_iterable, itertools.repeat((GONE,))

        def values() -> list[Any]:
            return [
                *map(len, empty.values()),
                *flat(map(read, *each) for read, each in single),
                *flat(flat(flat(zip(map(read, *e), end)) for read, e in many)),  # noqa: B905
            ]

        return values

    def places(
        self, names_of: Callable[[Any, Any], Iterable[str]]
    ) -> Iterator[PlacedValue]:
        """Every place; `names_of(owner, namespace)` are the names that count."""
        for each in self.every:
            kind, owner = each.kind, id(each.owner)
            if kind is NAMES or kind is CLASS_NAMES:
                (namespace,) = each.arguments
                for name in names_of(each.owner, namespace):
                    yield (kind, owner, name), f"{each.label}.{name}", namespace[name]
            elif not kind.many:
                names = [name for name in each.arguments[1:] if isinstance(name, str)]
                place = kind, owner, names[0] if names else each.label
                yield place, _label(each), kind.read(*each.arguments)
            elif kind is VALUES:
                for number, (key, value) in enumerate(dict.items(each.owner)):
                    shown = key if type(key) is str else number
                    yield (kind, owner, shown), f"{each.label}.{shown}", value
            else:
                for number, value in enumerate(kind.read(each.owner)):
                    yield (kind, owner, number), f"{each.label}[{number}]", value


def _label(watch: Watch) -> str:
    if watch.kind is TYPE:
        return f"the type of {watch.label}"
    if watch.kind is REFERENCE:
        return f"the death of {watch.label}"
    if watch.kind in (NAMESPACE, GUARDED_NAMESPACE):
        return f"{watch.label}.__dict__"
    if watch.kind is FUNCTION:
        return f"{watch.label}.{watch.arguments[1]}"
    return f"{watch.label}.__mro__" if watch.kind is BASES else watch.label
