"""The kinds of place in which a step finds its state, and how each is read and written.

A place is an attribute, an entry of a dict, a variable of an enclosing function, and so
on. A snapshot compares the places that a step reads, and an undo restores those that a
trial run has changed. All places of one kind are read at once, at C speed. Neither
reading nor writing runs code of the user, apart from the hash of a key.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import gc
import itertools
import operator
import types
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchproof.records import Namespace
from torchproof.runtime.cudagraph.object_state import ATOMS, CONTAINERS

GONE: Any = object()
PARTS_OF_MODULES = ("_parameters", "_buffers", "_modules")
# Dicts of hooks and other bookkeeping of modules: a hook that is added is seen without
# watching those that are empty.
MODULE_HOOKS = frozenset(vars(nn.Module())) - {"training", *PARTS_OF_MODULES}
# Those that a backward runs.
_TENSOR_HOOKS = {
    name: getattr(Tensor, name)
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks")
}
HEAP_TYPE = 1 << 9  # a flag of classes that Python code, or a library, has created
mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_view_of_class: Callable[[type], Any] = type.__dict__["__dict__"].__get__


# -- looking into objects, without running code of their classes -----------------------


def isinstance_of(value: Any, kinds: tuple[type, ...]) -> bool:
    """`isinstance` by type alone: an object's `__class__` may run user code."""
    return issubclass(type(value), kinds)


def dict_of_class(kind: type) -> Namespace:
    """The `__dict__` of a class itself, and not the read-only view of it."""
    (namespace,) = gc.get_referents(_view_of_class(kind))
    return namespace


def dict_of(value: Any) -> Namespace | None:
    """The `__dict__` of an object; None if it has none of its own."""
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


def hooks_of(owner: nn.Module | Tensor) -> Iterator[tuple[str, Namespace]]:
    """The dicts with hooks of a module or tensor, by name."""
    if isinstance_of(owner, (Tensor,)):
        found = {name: each.__get__(owner) for name, each in _TENSOR_HOOKS.items()}
    else:
        namespace = dict_of(owner) or {}
        found = {name: namespace.get(name) for name in MODULE_HOOKS}
    for name, hooks in found.items():
        if hooks and isinstance_of(hooks, (dict,)):
            yield name, hooks


def slots_of(kind: type) -> Iterator[tuple[str, Any]]:
    """The names and members of the slots of a class and its bases."""
    for each in mro_of(kind):
        if each.__flags__ & HEAP_TYPE or each is collections.defaultdict:
            for name, member in list(dict_of_class(each).items()):
                if type(member) is types.MemberDescriptorType:
                    yield name, member


_slots_of = functools.lru_cache(maxsize=4096)(lambda kind: tuple(slots_of(kind)))


def in_slot(member: Any, owner: Any) -> Any:
    try:
        return member.__get__(owner)
    except AttributeError:
        return GONE


def contents(cell: types.CellType) -> Any:
    """The value of a cell; the cell itself if its variable is unassigned."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def copied(container: Any) -> Any:
    """The entries of a dict in a dict; the items of another container in a list."""
    if isinstance_of(container, (collections.OrderedDict,)):
        return dict(collections.OrderedDict.items(container))
    if isinstance_of(container, (dict,)):
        return dict.copy(container)
    return [*items_of(container).read(container)]


def identities(values: list[Any]) -> bytes:
    """The addresses of a list's items, read from the memory of the list in CPython.

    This compares thousands of objects at once, without running their code.
    """
    items = ctypes.c_void_p.from_address(id(values) + LIST_ITEMS).value
    return ctypes.string_at(items or 0, _POINTER * len(values))


_POINTER = ctypes.sizeof(ctypes.c_void_p)
# `ob_item` is the last but one field of a list object, before `allocated`.
LIST_ITEMS = list.__basicsize__ - 2 * _POINTER


# -- writing ---------------------------------------------------------------------------


def write_entry(owner: Any, namespace: dict[Any, Any], name: Any, value: Any) -> None:
    """Sets or deletes an entry of a dict, which may be the namespace of a class."""
    if isinstance_of(owner, (type,)):
        if value is GONE:
            type.__delattr__(owner, name)
        else:
            type.__setattr__(owner, name, value)
    elif value is GONE:
        dict.pop(namespace, name, None)
    else:
        dict.__setitem__(namespace, name, value)


def refill(container: Any, items: Any) -> None:
    """Gives a container the items of a copy; a dict is never empty meanwhile."""
    if isinstance_of(container, (list,)):
        list.__setitem__(container, slice(None), items)
    elif isinstance_of(container, (collections.deque,)):
        collections.deque.clear(container)
        collections.deque.extend(container, items)
    elif isinstance_of(container, (set,)):
        set.clear(container)
        set.update(container, items)
    elif isinstance_of(container, (dict,)):
        _refill_dict(container, items)


def _refill_dict(container: Any, items: dict[Any, Any]) -> None:
    ordered = isinstance_of(container, (collections.OrderedDict,))
    kind: Any = collections.OrderedDict if ordered else dict
    known = set(map(id, items))
    for key in [each for each in kind.__iter__(container) if id(each) not in known]:
        kind.__delitem__(container, key)
    now = [*kind.__iter__(container)]
    in_order = is_same(now, [*items][: len(now)])
    for key, value in items.items():
        if not in_order:
            kind.pop(container, key, None)
        if dict.get(container, key, GONE) is not value:
            kind.__setitem__(container, key, value)


def is_same(one: Any, other: Any) -> bool:
    """Whether two copies have identical items, of dicts in the same order."""
    if isinstance(one, dict):
        return is_same([*one, *one.values()], [*other, *other.values()])
    return len(one) == len(other) and all(map(operator.is_, one, other))


def _write_cell(cell: types.CellType, value: Any) -> None:
    if value is cell:
        with contextlib.suppress(ValueError):
            del cell.cell_contents
    else:
        cell.cell_contents = value


def _write_slot(member: Any, owner: Any, value: Any) -> None:
    if value is GONE:
        member.__delete__(owner)
    else:
        member.__set__(owner, value)


def _write_context(variable: ContextVar[Any], default: Any, value: Any) -> None:
    if value is not GONE:  # it cannot be unset
        variable.set(value)


def _write_type(owner: Any, kind: type) -> None:
    object.__setattr__(owner, "__class__", kind)


# -- kinds of place --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Kind:
    """`read(*arguments)` returns the value of a place, or with `many` all values in it.

    `write(*arguments, value)` puts back a value; None if that needs more than a value.
    """

    name: str
    read: Callable[..., Any]
    write: Callable[..., None] | None = None
    many: bool = False


TYPE = Kind("type", type, _write_type)
NAMESPACE = Kind("namespace", object.__getattribute__, object.__setattr__)
BASES = Kind("bases", mro_of)
FUNCTION = Kind("function", getattr, setattr)
CELL = Kind("cell", contents, _write_cell)
SLOT = Kind("slot", in_slot, _write_slot)
CONTEXT = Kind("context", ContextVar.get, _write_context)
ENTRY = Kind("entry", dict.get)
VALUES = Kind("values", dict.values, many=True)
NAMES = Kind("names", iter, many=True)  # of an object or a class: not all need count
_ITEMS: dict[type, Kind] = {
    kind: Kind("items", kind.__iter__, many=True)
    for kind in (collections.OrderedDict, *CONTAINERS)
}
PARTS_OF_FUNCTION = ("__code__", "__defaults__", "__kwdefaults__")


def items_of(container: Any) -> Kind:
    """How to iterate over a container without running code of its class."""
    kind: Any = type(container)
    return _ITEMS[_container_of(kind)]


@functools.lru_cache(maxsize=4096)
def _container_of(kind: type) -> type:
    return next(base for base in _ITEMS if issubclass(kind, base))


class Watch(NamedTuple):
    """A place of a kind: `kind.read(*arguments)` returns its values."""

    kind: Kind
    label: str
    owner: Any
    arguments: tuple[Any, ...]

    def values(
        self, names_of: Callable[[Any, Namespace], Iterable[str]]
    ) -> dict[Any, Any]:
        """The values by name, key or number; a single one has the name None.

        `names_of(owner, namespace)` returns the names in a namespace that count.
        """
        container = self.arguments[0]
        if self.kind is NAMES:
            names = names_of(self.owner, container)
            return {name: container.get(name, GONE) for name in names}
        if not self.kind.many:
            return {None: self.kind.read(*self.arguments)}
        if self.kind is VALUES:
            return {
                key if type(key) is str else number: value
                for number, (key, value) in enumerate(dict.items(container))
            }
        return dict(enumerate(self.kind.read(container)))

    def label_of(self, name: Any) -> str:
        if self.kind is TYPE:
            return f"the type of {self.label}"
        if self.kind is BASES:
            return f"{self.label}.__mro__"
        if self.kind in (NAMESPACE, FUNCTION):
            return f"{self.label}.{self.arguments[1]}"
        if name is None:
            return self.label
        is_namespace = self.kind is NAMES or self.owner is not self.arguments[0]
        return f"{self.label}.{name}" if is_namespace else item_label(self.label, name)


def item_label(label: str, key: Any) -> str:
    """The label of an item of a container, or of a parameter or part of a module."""
    home, _, part = label.rpartition(".")
    if part in PARTS_OF_MODULES:
        return f"{home}.{key}"
    shown = repr(key) if type(key) in ATOMS else type(key).__name__
    return f"{label}[{shown}]"


def places_of(label: str, value: Any) -> Iterator[Watch]:
    """All places in an object that can be written, and the bases of a class.

    The names in a namespace are one place here.
    """
    kind: Any = type(value)
    if issubclass(kind, type):
        yield Watch(BASES, label, value, (value,))
        yield Watch(NAMES, label, value, (dict_of_class(value),))
        return
    if issubclass(kind, CONTAINERS):
        if not issubclass(kind, (tuple, frozenset)):
            yield Watch(items_of(value), label, value, (value,))
        if issubclass(kind, dict):
            yield Watch(VALUES, label, value, (value,))
        if kind in _ITEMS:
            return
    elif issubclass(kind, types.FunctionType):
        for name in PARTS_OF_FUNCTION:
            yield Watch(FUNCTION, label, value, (value, name))
    elif issubclass(kind, types.CellType):
        yield Watch(CELL, label, value, (value,))
    elif issubclass(kind, ContextVar):
        yield Watch(CONTEXT, label, value, (value, GONE))
    yield Watch(TYPE, label, value, (value,))
    if (namespace := dict_of(value)) is not None:
        yield Watch(NAMESPACE, label, value, (value, "__dict__"))
        yield Watch(NAMES, label, value, (namespace,))
    for name, member in _slots_of(kind):
        yield Watch(SLOT, f"{label}.{name}", value, (member, value))


class Watches:
    """All watched places."""

    def __init__(self) -> None:
        self.every: list[Watch] = []

    def add(self, kind: Kind, label: str, owner: Any, *arguments: Any) -> None:
        self.every.append(Watch(kind, label, owner, arguments))

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
