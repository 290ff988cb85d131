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
import importlib.abc
import importlib.machinery
import operator
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from torchproof.records import Namespace, whose
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
    HEAP_TYPE,
    LOCAL,
    NAMES,
    NAMESPACE,
    SLOT,
    TYPE,
    Watch,
    contents,
    dict_of,
    dict_of_class,
    has_plain_dict,
    in_slot,
    isinstance_of,
    mro_of,
    slots_of,
)

_MOST_OBJECTS = 20_000
_MOST_BYTES = 1 << 20  # of one array
_SKIPPED: tuple[Any, ...] = (*ATOMS, types.CodeType, *CACHED)
# The loaders of modules are no state of a step, and some reach a whole application.
_LOADERS = {importlib.abc.Loader, importlib.machinery.ModuleSpec}
# Types of objects that contain nothing; a set, because most objects are of these.
_LEAVES: frozenset[type] = frozenset(
    {
        *_SKIPPED,
        object,
        types.GetSetDescriptorType,
        types.MemberDescriptorType,
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.ClassMethodDescriptorType,
        torch.dtype,
        torch.device,
    }
)
_ARRAYS: tuple[Any, ...] = (*BYTES, *NUMBERS_IN_C)
_SKIPPED_MODULES = ("logging", "torchproof", "torch._dynamo", "torch._inductor")
# The module of the functions that call compiled code.
_COMPILED_BY = "torch._functorch.aot_autograd"
_NOTHING: dict[Any, Any] = {}


@dataclass(slots=True)
class _Content:
    """What an object contained."""

    owner: Any  # kept alive, so that its id stays unique
    kind: type
    namespace: Namespace | None
    keys: Sequence[Any] | None  # of a dict or a class
    items: Sequence[Any] | None  # of a container; the values of a dict or a class
    values: dict[Any, Any]  # by slot or by name
    by_name: Namespace | None = None

    def named(self) -> Namespace:
        """The entries of a namespace; keys of other types have no names."""
        if self.by_name is None:
            pairs = zip(self.keys or (), self.items or (), strict=False)
            self.by_name = {key: value for key, value in pairs if type(key) is str}
        return self.by_name


class PythonUndo:
    """The content of the objects that the step reaches, before its first trial."""

    def __init__(self) -> None:
        self._contents: dict[int, _Content] = {}
        self._kinds: set[type] = set()
        self._generators: list[tuple[torch.Generator, Tensor]] = []

    def save(self, roots: Iterable[Any]) -> None:
        """Saves the content of these objects and of what they reach, if it is new."""
        contents = self._contents
        todo = collections.deque(roots)
        while todo and len(contents) < _MOST_OBJECTS:
            value = todo.popleft()
            kind: Any = type(value)
            if kind in _LEAVES or id(value) in contents:
                continue
            form = _form_of(kind)
            if form is None or (form.is_saved and not form.is_saved(value)):
                continue
            if form.is_generator:
                self._generators.append((value, value.get_state()))
            content = contents[id(value)] = form.content(value)
            if content.keys and not _LEAVES.issuperset(map(type, content.keys)):
                todo.extend(content.keys)
            if content.items and not form.is_array:
                todo += [
                    each
                    for each in content.items
                    if type(each) not in _LEAVES and not _is_compiled(each)
                ]
            if (namespace := content.namespace) is not None:
                if namespace:
                    todo.append(namespace)
                else:  # that of most functions
                    empty = _Content(namespace, dict, None, (), (), _NOTHING)
                    contents.setdefault(id(namespace), empty)
            if content.values:
                todo.extend(content.values.values())
            if kind not in self._kinds:
                self._kinds.add(kind)
                todo.extend(form.classes)
            if form.parts:
                todo.extend(form.parts(value))

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
            is_of_torch = owner in reachable.of_torch
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
                old = before.named().get(name, GONE)
                if dict.get(owner, name, GONE) is not old:
                    self._restore_replaced(old)
                _set_entry(owner, name, old)
        elif kind in _SINGLE:
            _restore_value(watch, before)
        elif kind.many:
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
        old = saved.named()
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
                todo += [*(content.keys or ()), *content.items]
            todo.append(content.namespace)

    def _restore_items(self, container: Any) -> None:
        before = self._contents.get(id(container))
        if before is not None and before.items is not None:
            form = _form_of(before.kind)
            assert form is not None and form.read is not None
            if not all(
                map(_is_same, (before.keys, before.items), form.read(container))
            ):
                _refill(container, before)

    def _restore_array(self, array: Any) -> None:
        before = self._contents.get(id(array))
        if before is not None and before.items and data_of(array) != before.items[0]:
            with contextlib.suppress(TypeError, ValueError, BufferError):
                _write(array, before.items[0][-1])


_SINGLE = (CELL, SLOT, FUNCTION, CONTEXT, LOCAL)


@dataclass(frozen=True)
class _Form:
    """How the content of the objects of one type is read."""

    kind: type
    is_saved: Callable[[Any], bool] | None  # None if all are
    has_namespace: bool
    read: _Read | None
    values: Callable[[Any], dict[Any, Any]] | None
    parts: Callable[[Any], list[Any]] | None  # what else an object refers to
    classes: tuple[type, ...]
    is_array: bool
    is_generator: bool

    def content(self, value: Any) -> _Content:
        namespace: Any = None
        keys: Sequence[Any] | None = None
        items: Sequence[Any] | None = None
        if self.has_namespace:
            namespace = object.__getattribute__(value, "__dict__")
            if type(namespace) is not dict:
                namespace = None
        if self.read is not None:
            keys, items = self.read(value)
        values = _NOTHING if self.values is None else self.values(value)
        return _Content(value, self.kind, namespace, keys, items, values)


_Read = Callable[[Any], tuple[Sequence[Any] | None, Sequence[Any] | None]]


@functools.lru_cache(maxsize=4096)
def _form_of(kind: Any) -> _Form | None:
    """How objects of this type are saved; None if they are not."""
    is_saved = next((f for base, f in _SAVED if issubclass(kind, base)), None)
    skipped = str(kind.__module__).startswith(_SKIPPED_MODULES) and is_saved is None
    if skipped or issubclass(kind, _SKIPPED) or not _LOADERS.isdisjoint(mro_of(kind)):
        return None
    is_code = issubclass(kind, (types.FunctionType, type, types.ModuleType))
    return _Form(
        kind,
        is_saved,
        has_plain_dict(kind),
        next((read for base, read in _READ if issubclass(kind, base)), None),
        _values_of(kind),
        next((parts for base, parts in _PARTS if issubclass(kind, base)), None),
        () if is_code else tuple(filter(_is_of_user, mro_of(kind))),
        issubclass(kind, _ARRAYS),
        issubclass(kind, torch.Generator),
    )


def _is_of_users_file(module: types.ModuleType) -> bool:
    file = object.__getattribute__(module, "__dict__").get("__file__")
    return isinstance(file, str) and whose(file) == "user"


def _is_compiled(value: Any) -> bool:
    """Whether it is compiled code, as Dynamo puts into the globals of a step."""
    if type(value) is not types.FunctionType:
        return False
    inner = vars(value).get("_torchdynamo_orig_callable", value)
    scope = getattr(inner, "__globals__", _NOTHING)
    return bool(dict.get(scope, "__name__") == _COMPILED_BY)


def _may_change(function: types.FunctionType) -> bool:
    return owner_of(function.__code__) not in ("standard", "sink")


def _is_of_user(kind: type) -> bool:
    top = str(kind.__module__).partition(".")[0]
    return bool(kind.__flags__ & HEAP_TYPE) and top not in ("torch", "builtins")


_SAVED: tuple[tuple[Any, Callable[[Any], bool]], ...] = (
    (types.ModuleType, _is_of_users_file),
    (type, _is_of_user),
    (types.FunctionType, _may_change),
)


# -- what containers and other objects contain, without running code of their class ----


def _pairs(items_of: Callable[[Any], Iterable[Any]]) -> _Read:
    """Reads keys and values at once: another thread may change a dict."""

    def read(value: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        keys, items = zip(*pairs, strict=True) if (pairs := [*items_of(value)]) else _NO
        return keys, items

    return read


_NO: tuple[Sequence[Any], Sequence[Any]] = ((), ())


def _read_array(value: Any) -> tuple[None, list[Any] | None]:
    size = getattr(value, "nbytes", None) or memoryview(value).nbytes
    return None, [data_of(value)] if size <= _MOST_BYTES else None


def _reader(kind: Any) -> _Read:
    return lambda value: (None, list(kind.__iter__(value)))


_READ: tuple[tuple[Any, _Read], ...] = (
    (collections.OrderedDict, _pairs(collections.OrderedDict.items)),
    (dict, _pairs(dict.items)),
    *((kind, _reader(kind)) for kind in (list, tuple, collections.deque)),
    *((kind, _reader(kind)) for kind in (set, frozenset)),
    (type, _pairs(lambda kind: dict_of_class(kind).items())),
    (_ARRAYS, _read_array),
)


def _values_of(kind: Any) -> Callable[[Any], dict[Any, Any]] | None:
    """How to read the slots of an object, and what its C struct refers to."""
    members = [] if issubclass(kind, type) else [each for _, each in slots_of(kind)]
    read = next((read for base, read in _VALUES if issubclass(kind, base)), None)
    if not members:
        return read
    slots = lambda value: {each: in_slot(each, value) for each in members}  # noqa: E731
    return slots if read is None else lambda value: slots(value) | read(value)


_VALUES: tuple[tuple[Any, Callable[[Any], dict[Any, Any]]], ...] = (
    (
        types.FunctionType,
        lambda value: {
            "__code__": value.__code__,
            "__defaults__": value.__defaults__,
            "__kwdefaults__": value.__kwdefaults__,
        },
    ),
    (types.CellType, lambda value: {"contents": contents(value)}),
    (contextvars.ContextVar, lambda value: {"value": value.get(GONE)}),
    (threading.local, lambda value: {"items": dict(vars(value))}),
)


def _parts_of_function(value: types.FunctionType) -> list[Any]:
    parts: list[Any] = list(value.__closure__ or ())
    if owner_of(value.__code__) == "user" and not _is_generated_for_library(value):
        parts.append(value.__globals__)
    return parts


def _is_generated_for_library(function: types.FunctionType) -> bool:
    """Whether it is as a method that `dataclass` made for a class of a library."""
    if not function.__code__.co_filename.startswith("<"):
        return False
    file = dict.get(function.__globals__, "__file__")
    return isinstance(file, str) and whose(file) != "user"


def _members(*names: str) -> Callable[[Any], list[Any]]:
    return lambda value: [getattr(value, name) for name in names]


_PARTS: tuple[tuple[Any, Callable[[Any], list[Any]]], ...] = (
    (types.FunctionType, _parts_of_function),
    (weakref.ref, lambda value: [weakref.ref.__call__(value)]),
    (types.MethodType, _members("__func__", "__self__")),
    (functools.partial, _members("func", "args", "keywords")),
    ((staticmethod, classmethod), _members("__func__")),
    (property, _members("fget", "fset")),
    ((types.BuiltinFunctionType, types.MethodWrapperType), _members("__self__")),
    (collections.defaultdict, _members("default_factory")),
    (Tensor, _members(*TENSOR_HOOKS)),
)


def _is_same(one: Sequence[Any] | None, other: Sequence[Any] | None) -> bool:
    """Whether both have identical items."""
    if one is None or other is None:
        return one is other
    return len(one) == len(other) and all(map(operator.is_, one, other))


def _set_entry(namespace: dict[Any, Any], name: Any, value: Any) -> None:
    if value is GONE:
        dict.pop(namespace, name, None)
    elif dict.get(namespace, name, GONE) is not value:
        dict.__setitem__(namespace, name, value)


def _refill(container: Any, before: _Content) -> None:
    items = before.items or ()
    if isinstance_of(container, (list,)):
        list.__setitem__(container, slice(None), items)
    elif isinstance_of(container, (collections.deque,)):
        collections.deque.clear(container)
        collections.deque.extend(container, items)
    elif isinstance_of(container, (set,)):
        set.clear(container)
        set.update(container, items)
    elif isinstance_of(container, (dict,)):
        _refill_dict(container, before.keys or (), items)


def _refill_dict(container: Any, keys: Sequence[Any], items: Sequence[Any]) -> None:
    """Restores entries one by one; all of them only if the order has changed."""
    ordered = isinstance_of(container, (collections.OrderedDict,))
    kind: Any = collections.OrderedDict if ordered else dict
    known = set(map(id, keys))
    for key in list(kind.__iter__(container)):
        if id(key) not in known:
            kind.__delitem__(container, key)
    for key, value in zip(keys, items, strict=True):
        if dict.get(container, key, GONE) is not value:
            kind.__setitem__(container, key, value)
    if not _is_same(keys, list(kind.__iter__(container))):
        kind.clear(container)
        for key, value in zip(keys, items, strict=True):
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
