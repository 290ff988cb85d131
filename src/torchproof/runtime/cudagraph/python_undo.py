"""Undoes what a trial run of a step changed in Python objects.

Before a trial, the places in every object that the step can reach are copied, one level
deep. The code that runs is not known yet, so nothing is left out by name. After the
trial it is known. Then only the places that this code can reach get their old content
again; others may have been changed by other threads. The recorder restores the memory
of tensors.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib.abc
import importlib.machinery
import types
import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from torchproof.records import Namespace, whose
from torchproof.runtime.cudagraph import reachable_state
from torchproof.runtime.cudagraph.executed_code import owner_of
from torchproof.runtime.cudagraph.object_state import (
    CACHED,
    PLAIN,
)
from torchproof.runtime.cudagraph.reachable_state import (
    OF_SCALERS,
    ReachableState,
    referents,
)
from torchproof.runtime.cudagraph.watched_places import (
    ENTRY,
    GONE,
    HEAP_TYPE,
    NAMES,
    Kind,
    Watch,
    copied,
    dict_of,
    hooks_of,
    is_same,
    isinstance_of,
    mro_of,
    places_of,
    refill,
    write_entry,
)

# No state of a step: loaders of modules, and caches. Some reach a whole application.
_LEFT_OUT = {importlib.abc.Loader, importlib.machinery.ModuleSpec, CACHED}
# Types of objects that contain nothing; a set, because most objects are of these.
_LEAVES: frozenset[type] = frozenset(
    {
        *PLAIN,
        object,
        types.CodeType,
        types.GetSetDescriptorType,
        types.MemberDescriptorType,
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.ClassMethodDescriptorType,
    }
)
_SKIPPED_MODULES = ("logging", "torchproof", "torch._dynamo", "torch._inductor")
# Modules of compiled code, as Dynamo puts it into the globals of a step.
_COMPILED = ("torch._functorch", "torch._inductor")


class PythonUndo:
    """The content of the objects that the step reaches, before its first trial."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # alive, so that their ids stay unique
        self._containers: dict[int, Any] = {}  # copies of containers and namespaces
        self._values: dict[tuple[Kind, int, int], Any] = {}  # of single places

    def save(self, roots: Iterable[Any]) -> bool:
        """Saves the content of these objects and of what they reach, if it is new.

        Returns False if that are too many objects.
        """
        todo = collections.deque(roots)
        while todo:
            if len(self._seen) > reachable_state.MOST_OBJECTS:
                return False
            value = todo.popleft()
            if type(value) in _LEAVES or id(value) in self._seen or _is_left(value):
                continue
            self._seen[id(value)] = value
            for watch in places_of("", value):
                todo += self._saved(watch)
            todo += _parts_of(value)
        return True

    def _saved(self, watch: Watch) -> list[Any]:
        """Saves a place; returns the objects in it."""
        first = watch.arguments[0]
        if not watch.kind.many:
            value = watch.kind.read(*watch.arguments)
            self._values[_key(watch)] = value
            return [value]
        if id(first) in self._containers:
            return []
        copy = self._containers[id(first)] = copied(first)
        return [each for each in _parts_of_copy(copy) if type(each) not in _LEAVES]

    def restore(self, reachable: ReachableState) -> None:
        """Restores the places that the step reaches."""
        for watch in reachable.watches.every:
            with contextlib.suppress(AttributeError, TypeError):  # read-only
                self._restore(watch, reachable)
        for scaler in reachable.scalers:
            namespace = dict_of(scaler) or {}
            self._restore_entry(scaler, namespace, OF_SCALERS)
            self._restore_replaced(namespace.get(OF_SCALERS))

    def _restore(self, watch: Watch, reachable: ReachableState) -> None:
        kind, container = watch.kind, watch.arguments[0]
        if kind is NAMES or kind is ENTRY:
            self._restore_entries(watch, container, reachable)
        elif kind.many:
            self._restore_items(container)
        elif kind.write is not None:
            now = kind.read(*watch.arguments)
            before = self._values.get(_key(watch), now)
            if before is not now:
                kind.write(*watch.arguments, before)

    def _restore_entries(
        self, watch: Watch, namespace: Namespace, reachable: ReachableState
    ) -> None:
        """Restores entries by name: new ones go, deleted ones come back."""
        old = self._containers.get(id(namespace))
        if old is None:
            return
        names = [watch.arguments[1]] if watch.kind is ENTRY else []
        if watch.kind is NAMES:
            names += reachable.names_of(watch.owner, namespace)
            names += reachable.names_of(watch.owner, old)
        for name in names:
            self._restore_entry(watch.owner, namespace, name)

    def _restore_entry(self, owner: Any, namespace: Namespace, name: str) -> None:
        before = self._containers.get(id(namespace), namespace).get(name, GONE)
        if before is not namespace.get(name, GONE):
            self._restore_replaced(before)
            write_entry(owner, namespace, name, before)

    def _restore_replaced(self, value: Any) -> None:
        """Restores what the trial changed in an object before it replaced it.

        Nothing watches such an object any more: `GradScaler.update` replaces a dict
        that `GradScaler.step` has filled.
        """
        todo, seen = [value], set()
        while todo:
            each = todo.pop()
            for container in (each, dict_of(each)):
                copy = self._containers.get(id(container))
                if copy is not None and id(container) not in seen:
                    seen.add(id(container))
                    self._restore_items(container)
                    todo += _parts_of_copy(copy)

    def _restore_items(self, container: Any) -> None:
        before = self._containers.get(id(container))
        if before is not None and not is_same(before, copied(container)):
            refill(container, before)


def _parts_of_copy(copy: Any) -> list[Any]:
    return [*copy, *copy.values()] if isinstance(copy, dict) else copy


def _key(watch: Watch) -> tuple[Kind, int, int]:
    return watch.kind, id(watch.arguments[0]), id(watch.arguments[-1])


def _parts_of(value: Any) -> list[Any]:
    """What an object refers to beside what is in its places."""
    if isinstance_of(value, (types.FunctionType,)):
        code = value.__code__
        # The methods that `dataclass` makes for a library are in no file either.
        is_users = owner_of(code) == "user" and not code.co_filename.startswith("<")
        return [*(value.__closure__ or ()), value.__globals__ if is_users else None]
    if isinstance_of(value, (weakref.ref,)):
        return [weakref.ref.__call__(value)]
    if isinstance_of(value, (Tensor,)):
        return [hooks for _, hooks in hooks_of(value)]
    return referents(value)


def _is_left(value: Any) -> bool:
    """Whether an object is no state of the program, or does not change."""
    kind: Any = type(value)
    if issubclass(kind, types.ModuleType):
        file = object.__getattribute__(value, "__dict__").get("__file__")
        return not (isinstance(file, str) and whose(file) == "user")
    if issubclass(kind, type):
        top = str(value.__module__).partition(".")[0]
        return not value.__flags__ & HEAP_TYPE or top in ("torch", "builtins")
    if issubclass(kind, types.FunctionType):
        is_compiled = str(value.__module__).startswith(_COMPILED)
        return is_compiled or owner_of(value.__code__) in ("standard", "sink")
    return _is_left_out(kind)


@functools.lru_cache(maxsize=4096)
def _is_left_out(kind: type) -> bool:
    is_skipped = str(kind.__module__).startswith(_SKIPPED_MODULES)
    return is_skipped or not _LEFT_OUT.isdisjoint(mro_of(kind))
