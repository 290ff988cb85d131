"""Undoes what a trial run of a step changed in Python objects.

Before a trial, the content of every object that the step can reach is copied, one level
deep: namespaces, containers, cells, slots, classes. The code that runs is not known
yet, so nothing is left out by name. After the trial it is known. Then only the places
that this code can reach get their old content again, in place; others may have been
changed by other threads. The recorder restores the memory of tensors.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import ctypes
import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from torchproof.records import whose
from torchproof.runtime.cudagraph.executed_code import owner_of
from torchproof.runtime.cudagraph.object_state import (
    ATOMS,
    BYTES,
    CACHED,
    NUMBERS_IN_C,
    TENSOR_HOOKS,
    data_of,
)
from torchproof.runtime.cudagraph.reachable_state import ReachableState
from torchproof.runtime.cudagraph.watched_places import (
    CELL,
    CLASS_NAMES,
    CONTEXT,
    ENTRY,
    FUNCTION,
    GONE,
    GUARDED_NAMESPACE,
    LOCAL,
    NAMES,
    NAMESPACE,
    SLOT,
    TYPE,
    Watch,
    contents,
    dict_of,
    dict_of_class,
    in_slot,
    isinstance_of,
    mro_of,
)

_MOST_OBJECTS = 20_000
_MOST_BYTES = 1 << 20  # of one array
_OF_FUNCTION = ("__code__", "__defaults__", "__kwdefaults__")
_SKIPPED: tuple[Any, ...] = (*ATOMS, types.CodeType, *CACHED)
_ARRAYS: tuple[Any, ...] = (*BYTES, *NUMBERS_IN_C)
_SKIPPED_MODULES = ("logging", "torchproof", "torch._dynamo", "torch._inductor")
_HEAP_TYPE = 1 << 9


@dataclass(frozen=True)
class _Content:
    """What an object contained; `items` are those of a container or of a class."""

    owner: Any  # kept alive, so that its id stays unique
    kind: type
    namespace: dict[str, Any] | None
    items: list[Any] | None
    values: dict[Any, Any]  # by slot or by name


class PythonUndo:
    """The content of the objects that the step reaches, before its first trial."""

    def __init__(self) -> None:
        self._contents: dict[int, _Content] = {}
        self._generators: list[tuple[torch.Generator, Tensor]] = []

    def save(self, roots: Iterable[Any]) -> None:
        """Saves the content of these objects and of what they reach, if it is new."""
        todo = collections.deque(roots)
        while todo and len(self._contents) < _MOST_OBJECTS:
            value = todo.popleft()
            if id(value) in self._contents or not _has_content(value):
                continue
            if isinstance_of(value, (torch.Generator,)):
                self._generators.append((value, value.get_state()))
            content = _content(value)
            self._contents[id(value)] = content
            todo.extend(_parts(content))

    def has_drawn(self) -> bool:
        """Whether random numbers were drawn from a generator of the step."""
        return any(
            not torch.equal(generator.get_state(), state)
            for generator, state in self._generators
        )

    def restore(
        self, reachable: ReachableState, is_forgotten: Callable[[int, Any], bool]
    ) -> None:
        """Restores the places that the step reaches, apart from forgotten ones."""
        for watch in reachable.watches.every:
            owner = id(watch.owner)
            is_of_torch = owner in reachable.foreign
            if owner in self._contents and not is_of_torch:
                with contextlib.suppress(AttributeError, TypeError):  # read-only
                    self._restore(watch, reachable.names_of, is_forgotten)
        for optimizer in reachable.optimizers:
            for part in (optimizer.state, *optimizer.param_groups):
                self._restore_items(part)
            self._restore_items(optimizer.param_groups)
            for state in optimizer.state.values():
                self._restore_items(state)
        for _, array in reachable.arrays:
            self._restore_array(array)
        for generator, state in self._generators:
            generator.set_state(state)

    def _restore(
        self,
        watch: Watch,
        names_of: Callable[[Any, Any], list[str]],
        is_forgotten: Callable[[int, Any], bool],
    ) -> None:
        before = self._contents[id(watch.owner)]
        owner, kind = watch.owner, watch.kind
        if kind is TYPE:
            if type(owner) is not before.kind:
                object.__setattr__(owner, "__class__", before.kind)
        elif kind in (NAMESPACE, GUARDED_NAMESPACE):
            if dict_of(owner) is not before.namespace:
                object.__setattr__(owner, "__dict__", before.namespace)
        elif kind is NAMES or kind is CLASS_NAMES:
            self._restore_names(owner, names_of, is_forgotten)
        elif kind is ENTRY:
            name = watch.arguments[1]
            if not is_forgotten(id(owner), name):
                old = dict(_identified(before.items or ())).get(name, GONE)
                if dict.get(owner, name, GONE) is not old:
                    self._restore_replaced(old)
                _set_entry(owner, name, old)
        elif kind in _SINGLE:
            _restore_value(watch, before)
        elif kind.length is not None:
            self._restore_items(owner)

    def _restore_names(
        self,
        owner: Any,
        names_of: Callable[[Any, Any], list[str]],
        is_forgotten: Callable[[int, Any], bool],
    ) -> None:
        """Restores attributes by name: new ones go, deleted ones come back."""
        is_class = isinstance_of(owner, (type,))
        namespace = dict_of_class(owner) if is_class else dict_of(owner)
        if namespace is None:  # a dict whose entries count by name
            namespace = owner
        saved = self._contents.get(id(owner) if is_class else id(namespace))
        if saved is None:
            return
        old = dict(_identified(saved.items or ()))
        view: Any = types.MappingProxyType(old) if is_class else old
        for name in {**dict.fromkeys(names_of(owner, namespace))} | dict.fromkeys(
            names_of(owner, view)
        ):
            if is_forgotten(id(owner), name) or is_forgotten(id(namespace), name):
                continue
            before, now = old.get(name, GONE), namespace.get(name, GONE)
            if before is now:
                continue
            self._restore_replaced(before)
            if not is_class:
                _set_entry(namespace, name, before)
            elif before is GONE:
                type.__delattr__(owner, name)
            else:
                type.__setattr__(owner, name, before)

    def _restore_replaced(self, value: Any) -> None:
        """Restores what the trial changed in an object before it replaced it.

        Nothing watches such an object any more: `GradScaler.update` replaces a dict
        that `GradScaler.step` has filled.
        """
        todo, seen = [value], set()
        while todo:
            each = todo.pop()
            content = self._contents.get(id(each))
            if content is None or id(each) in seen:
                continue
            seen.add(id(each))
            if content.items is not None and not isinstance_of(each, (type, *_ARRAYS)):
                self._restore_items(each)
                parts = content.items
                pairs = isinstance_of(each, (dict,))
                todo += [part for pair in parts for part in pair] if pairs else parts
            todo.append(content.namespace)

    def _restore_items(self, container: Any) -> None:
        before = self._contents.get(id(container))
        if before is None or before.items is None:
            return
        if not _is_same(before.items, _items(container)):
            _refill(container, before.items)

    def _restore_array(self, array: Any) -> None:
        before = self._contents.get(id(array))
        if before is not None and before.items and data_of(array) != before.items[0]:
            with contextlib.suppress(TypeError, ValueError, BufferError):
                _write(array, before.items[0][-1])


_SINGLE = (CELL, SLOT, FUNCTION, CONTEXT, LOCAL)


def _has_content(value: Any) -> bool:
    if isinstance_of(value, _SKIPPED) or value is GONE:
        return False
    if isinstance_of(value, (types.ModuleType,)):
        file = object.__getattribute__(value, "__dict__").get("__file__")
        return isinstance(file, str) and whose(file) == "user"
    if isinstance_of(value, (type,)):
        return _is_of_user(value)
    if isinstance_of(value, (types.FunctionType,)):
        return owner_of(value.__code__) not in ("standard", "sink")
    return not str(type(value).__module__).startswith(_SKIPPED_MODULES)


def _content(value: Any) -> _Content:
    kind: Any = type(value)
    slots = {each: in_slot(each, value) for each in _slots_of(kind)}
    if isinstance_of(value, (types.FunctionType,)):
        slots |= {name: getattr(value, name) for name in _OF_FUNCTION}
    elif isinstance_of(value, (types.CellType,)):
        slots["contents"] = contents(value)
    elif isinstance_of(value, (contextvars.ContextVar,)):
        slots["value"] = value.get(GONE)
    elif isinstance_of(value, (threading.local,)):
        slots["items"] = dict(vars(value))
    return _Content(value, type(value), dict_of(value), _items(value), slots)


@functools.lru_cache(maxsize=4096)
def _slots_of(kind: type) -> list[Any]:
    return [
        member
        for each in mro_of(kind)
        if each.__flags__ & _HEAP_TYPE and not issubclass(kind, type)
        for member in list(dict_of_class(each).values())
        if type(member) is types.MemberDescriptorType
    ]


@functools.lru_cache(maxsize=4096)
def _classes_of(kind: type) -> list[type]:
    return list(filter(_is_of_user, mro_of(kind)))


def _items(value: Any) -> list[Any] | None:
    """The items of a container or a class, without running code of its class."""
    if isinstance_of(value, (collections.OrderedDict,)):
        return list(collections.OrderedDict.items(value))
    if isinstance_of(value, (dict,)):
        return list(dict.items(value))
    for kind in (list, tuple, collections.deque, set, frozenset):
        if isinstance_of(value, (kind,)):
            return list(kind.__iter__(value))
    if isinstance_of(value, (type,)):
        return list(dict_of_class(value).items())
    if isinstance_of(value, _ARRAYS):
        size = getattr(value, "nbytes", None) or memoryview(value).nbytes
        return [data_of(value)] if size <= _MOST_BYTES else None
    return None


def _parts(content: _Content) -> Iterator[Any]:
    """What an object refers to, apart from the insides of torch."""
    value, items = content.owner, content.items
    if isinstance_of(value, (dict, type)):
        for pair in items or ():
            yield from pair
    elif not isinstance_of(value, _ARRAYS):
        yield from items or ()
    yield content.namespace
    yield from content.values.values()
    if not isinstance_of(value, (types.FunctionType, type, types.ModuleType)):
        kind: Any = type(value)
        yield from _classes_of(kind)
    if isinstance_of(value, (types.FunctionType,)):
        yield from value.__closure__ or ()
        if owner_of(value.__code__) == "user":
            yield value.__globals__
    elif isinstance_of(value, (weakref.ref,)):
        yield weakref.ref.__call__(value)
    for kinds, names in _MEMBERS:
        if isinstance_of(value, kinds):
            yield from (getattr(value, name) for name in names)


_MEMBERS: tuple[tuple[tuple[Any, ...], tuple[str, ...]], ...] = (
    ((types.MethodType,), ("__func__", "__self__")),
    ((functools.partial,), ("func", "args", "keywords")),
    ((staticmethod, classmethod), ("__func__",)),
    ((property,), ("fget", "fset")),
    ((types.BuiltinFunctionType, types.MethodWrapperType), ("__self__",)),
    ((collections.defaultdict,), ("default_factory",)),
    ((Tensor,), TENSOR_HOOKS),
)


def _is_of_user(kind: type) -> bool:
    top = str(kind.__module__).partition(".")[0]
    return bool(kind.__flags__ & _HEAP_TYPE) and top not in ("torch", "builtins")


def _identified(items: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """The entries of a namespace; keys of other types have no names."""
    return ((key, value) for key, value in items if type(key) is str)


def _is_same(one: list[Any], other: list[Any] | None) -> bool:
    """Whether both have identical items, which are pairs in a dict."""
    return (
        other is not None
        and len(one) == len(other)
        and all(
            mine is its
            or (
                type(mine) is tuple
                and type(its) is tuple
                and len(mine) == len(its) == 2
                and mine[0] is its[0]
                and mine[1] is its[1]
            )
            for mine, its in zip(one, other, strict=True)
        )
    )


def _set_entry(namespace: dict[Any, Any], name: Any, value: Any) -> None:
    if value is GONE:
        dict.pop(namespace, name, None)
    elif dict.get(namespace, name, GONE) is not value:
        dict.__setitem__(namespace, name, value)


def _refill(container: Any, items: list[Any]) -> None:
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


def _refill_dict(container: dict[Any, Any], items: list[Any]) -> None:
    """Restores entries one by one; all of them only if the order has changed."""
    ordered = isinstance_of(container, (collections.OrderedDict,))
    kind: Any = collections.OrderedDict if ordered else dict
    keys = {id(key) for key, _ in items}
    for key, _ in _items(container) or ():
        if id(key) not in keys:
            kind.__delitem__(container, key)
    for key, value in items:
        if dict.get(container, key, GONE) is not value:
            kind.__setitem__(container, key, value)
    if not _is_same(items, _items(container)):
        kind.clear(container)
        for key, value in items:
            kind.__setitem__(container, key, value)


def _restore_value(watch: Watch, before: _Content) -> None:
    owner: Any = watch.owner
    if watch.kind is CELL:
        old = before.values["contents"]
        if old is owner:
            with contextlib.suppress(ValueError):
                del owner.cell_contents
        elif contents(owner) is not old:
            owner.cell_contents = old
    elif watch.kind is SLOT:
        member = watch.arguments[0]
        old = before.values.get(member, in_slot(member, owner))
        if old is GONE:
            member.__delete__(owner)
        elif in_slot(member, owner) is not old:
            member.__set__(owner, old)
    elif watch.kind is FUNCTION:
        name = watch.arguments[1]
        if getattr(owner, name) is not before.values[name]:
            setattr(owner, name, before.values[name])
    elif watch.kind is LOCAL:
        namespace, old = vars(owner), before.values["items"]
        for name in {**namespace, **old}:
            _set_entry(namespace, name, old.get(name, GONE))
    else:
        old = before.values["value"]
        if old is not GONE and owner.get(GONE) is not old:
            owner.set(old)


def _write(array: Any, data: bytes) -> None:
    """Writes old bytes into an array of the same size."""
    if isinstance(array, numpy.ndarray):
        array[...] = numpy.frombuffer(data, array.dtype).reshape(array.shape)
    elif isinstance(array, ctypes.Structure | ctypes.Union | ctypes.Array):
        ctypes.memmove(ctypes.addressof(array), data, len(data))
    elif isinstance(array, bytearray):
        array[:] = data
    else:
        memoryview(array).cast("B")[:] = data
