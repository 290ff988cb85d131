"""A snapshot of all state that a step can reach besides its arguments.

A replay runs the kernels of one recorded run on the memory of that run. It does not
read again what Python would read: attributes, modules, classes, replaced parameters,
values in closures and globals. So this state is compared with the snapshot before a
result is returned. The comparison is by identity, at C speed, and runs no user code.
Only if an object is not identical, the values are compared one by one.

Modules are watched completely. Of other objects, classes and globals, only the
attributes count that the executed code names: a trainer's counter may change with every
call.
"""

from __future__ import annotations

import abc
import collections
import ctypes
import itertools
import operator
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torchproof.runtime.cudagraph.executed_code import Execution, isinstance_of
from torchproof.runtime.cudagraph.object_state import data_of
from torchproof.runtime.cudagraph.reachable_state import (
    GONE,
    HOOKS,
    PLAIN,
    TENSOR_HOOKS,
    ReachableState,
    contents,
    dict_of,
    has_plain_memory,
    in_slot,
    mro_of,
)

Place = tuple[Any, ...]
PlacedValue = tuple[Place, str, Any]  # a place, its label, and its value


class StateSnapshot:
    """The reachable state at the time of the last `refresh`."""

    def __init__(self, step: Callable[..., Any], ran: Execution | None = None) -> None:
        self._step = step
        self.ran = Execution() if ran is None else ran
        self.extend()

    def extend(self) -> None:
        """Also watches what the code reads that has run since."""
        self._reachable = reachable = ReachableState(self._step, self.ran)
        self.modules: list[nn.Module] = reachable.modules
        self.optimizers: list[torch.optim.Optimizer] = reachable.optimizers
        self._scalers: list[torch.amp.GradScaler] = reachable.scalers
        self._values_of = _values_of(reachable)
        self._sizes_of = _sizes_of(reachable)
        self._arrays = [each for _, each in reachable.arrays]
        self._asks_abstract_classes = self.ran.asked_abstract_classes
        self._caches = [each for _, each in reachable.caches]
        self.refresh()

    def unwatchable(self, ran: Execution) -> list[str]:
        """A message for each object that this code reads and that cannot be watched."""
        return ReachableState(self._step, ran, strict=True).opaque

    @property
    def whole(self) -> bool:
        """Whether all state is watched; false if there are too many objects."""
        return self._reachable.whole

    @property
    def lacks_scale(self) -> bool:
        """Whether a GradScaler has not created its scale yet."""
        return any(s.is_enabled() and s._scale is None for s in self._scalers)

    @property
    def unwatchable_tensors(self) -> list[str]:
        """A message for each tensor whose memory cannot be watched."""
        return [
            f"{label} is a {type(tensor).__name__} of layout {tensor.layout}"
            for label, tensor in self._reachable.unwatchable_tensors
        ]

    @property
    def parameters(self) -> list[tuple[str, Tensor]]:
        """The leaf tensors that may get a gradient."""
        return [
            (label, tensor)
            for label, tensor in self._reachable.tensors.values()
            if tensor.is_leaf and tensor.is_floating_point()
        ]

    @property
    def buffers(self) -> list[Tensor]:
        return [
            buffer
            for module in self.modules
            for buffer in module.buffers(recurse=False)
            if has_plain_memory(buffer)
        ]

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for _, tensor in self._reachable.tensors.values()]

    # -- watching ------------------------------------------------------------------

    def refresh(self) -> None:
        """Takes the snapshot: changes are relative to this moment."""
        self._values = self._values_of()  # kept alive, so that their ids stay unique
        self._identities = _identities(self._values)
        self._then = {place: (label, value) for place, label, value in self._places()}
        self._sizes = self._sizes_of()
        self._states = [each.state for each in self.optimizers]
        self._state_dicts = [each for state in self._states for each in state.values()]
        self._entries = list(_values_in(self._state_dicts))
        self._watched = [tensor for _, tensor in self._reachable.tensors.values()]
        self._watched += [each for each in self._entries if isinstance(each, Tensor)]
        # Kept alive, so that no other tensor gets their address.
        self._aliases = [tensor.detach() for tensor in self._watched]
        self._addresses = list(map(Tensor.data_ptr, self._watched))
        self._layouts = self._layouts_now()
        self._learning = list(map(_requires_grad, self._watched))
        self._data = list(map(data_of, self._arrays))
        self._cached = [list(each.values()) for each in self._caches]
        self._hooked = RemovableHandle.next_id
        self._registered = self._registrations()

    def unchanged(self) -> bool:
        """Whether every object is identical to the snapshot."""
        try:
            return (
                RemovableHandle.next_id == self._hooked
                and self._sizes_of() == self._sizes
                and _identities(self._values_of()) == self._identities
                and list(map(Tensor.data_ptr, self._watched)) == self._addresses
                and self._layouts_now() == self._layouts
                and list(map(_requires_grad, self._watched)) == self._learning
                and list(map(data_of, self._arrays)) == self._data
                and self._states_are_there()
                and self._is_still_cached()
                and self._registrations() == self._registered
            )
        except Exception:  # something was deleted, or another thread changes it
            return False

    def _layouts_now(self) -> tuple[list[Any], list[Any]]:
        return list(map(_shape, self._watched)), list(map(Tensor.stride, self._watched))

    def _states_are_there(self) -> bool:
        """Whether the optimizers still use the same state tensors."""
        now = [each.state for each in self.optimizers]
        return (
            all(map(operator.is_, now, self._states))
            and sum(map(len, now)) == len(self._state_dicts)
            and sum(map(len, self._state_dicts)) == len(self._entries)
            and all(map(operator.is_, _values_in(self._state_dicts), self._entries))
        )

    def _is_still_cached(self) -> bool:
        """Whether each `lru_cache` still has its old entries; it may have new ones."""
        return all(
            len(now) >= len(then) and all(map(operator.is_, then, now.values()))
            for now, then in zip(self._caches, self._cached, strict=True)
        )

    def _registrations(self) -> object:
        """A token that changes when `isinstance` may change for an abstract class."""
        return abc.get_cache_token() if self._asks_abstract_classes else None

    def changes(self) -> list[str]:
        """A message for each change; an equal object is no change."""
        messages = [
            f"{label} was {_shown(then)} and is now {_shown(now)}"
            for place, label, then, now in self._differing()
            if not self.ran.is_forgotten(place[1], _name_in(place[0], place[2]))
        ]
        labels = [label for label, _ in self._reachable.tensors.values()]
        pairs = zip(
            itertools.chain(labels, itertools.repeat("state of an optimizer")),
            self._watched,
            self._addresses,
            *self._layouts,
            self._learning,
            strict=False,
        )
        for label, tensor, address, shape, strides, learning in pairs:
            if tensor.data_ptr() != address:
                messages.append(f"{label} has another address")
            elif (tensor.shape, tensor.stride()) != (shape, strides):
                messages.append(f"the shape or the strides of {label} changed")
            elif tensor.requires_grad != learning:
                messages.append(f"{label}.requires_grad is now {tensor.requires_grad}")
        for (label, array), then in zip(
            self._reachable.arrays, self._data, strict=True
        ):
            if data_of(array) != then:
                messages.append(f"the content of {label} changed")
        if not self._states_are_there():
            messages.append("the state of an optimizer was replaced")
        if not self._is_still_cached():
            messages.append("a function's lru_cache was cleared")
        if self._registrations() != self._registered:
            messages.append("a class was registered with an abstract base class")
        return messages + list(self._new_hooks())

    def _new_hooks(self) -> Iterator[str]:
        watched = {id(each) for _, each in self._reachable.dicts}
        for module in self.modules:
            for name in HOOKS:
                hooks = module.__dict__.get(name)
                if hooks and id(hooks) not in watched:
                    yield f"a hook was added to a {type(module).__name__}"
        for label, tensor in self._reachable.tensors.values():
            for name in TENSOR_HOOKS:
                hooks = getattr(tensor, name, None)
                if hooks and id(hooks) not in watched:
                    yield f"a hook was added to {label}"

    def forget_foreign_changes(self) -> bool:
        """Stops watching state of torch and the standard library that changed.

        Returns whether there was any.
        """
        foreign = self._reachable.foreign
        changed = [place for place, *_ in self._differing() if place[1] in foreign]
        for kind, owner, name in changed:
            self.ran.forget(foreign[owner], _name_in(kind, name))
        return bool(changed)

    def moved(self) -> bool:
        """Whether a tensor has another address, or was replaced by another tensor."""
        if list(map(Tensor.data_ptr, self._watched)) != self._addresses:
            return True
        return not self._states_are_there() or any(
            isinstance(then, Tensor) for _, _, then, _ in self._differing()
        )

    def _differing(self) -> Iterator[tuple[Place, str, Any, Any]]:
        """Yields place, label, old and new value for each value that differs."""
        before = self._then
        after = {place: (label, value) for place, label, value in self._places()}
        for place in {**before, **after}:
            label, old = before.get(place, ("", GONE))
            other, new = after.get(place, ("", GONE))
            if old is not new and not _equal(new, old):
                yield place, label or other, old, new

    # -- one by one ----------------------------------------------------------------

    def _places(self) -> Iterator[PlacedValue]:
        """Yields every value that is watched by identity."""
        yield from self._places_in_containers()
        yield from self._places_by_name()
        reachable = self._reachable
        for label, cell in reachable.cells:
            yield ("cell", id(cell), ""), label, contents(cell)
        for label, variable in reachable.contexts:
            yield ("context", id(variable), ""), label, variable.get(GONE)
        for label, reference in reachable.references:
            yield (
                ("weak", id(reference), ""),
                f"the death of {label}",
                _is_dead(reference),
            )
        for label, local in reachable.locals:
            for name, value in vars(local).items():
                yield ("local", id(local), name), f"{label}.{name}", value
        for label, function in reachable.functions:
            for name in ("__code__", "__defaults__", "__kwdefaults__"):
                place = "function", id(function), name
                yield place, f"{label}.{name}", getattr(function, name)

    def _places_in_containers(self) -> Iterator[PlacedValue]:
        reachable = self._reachable
        for label, each in reachable.dicts:
            for number, (key, value) in enumerate(dict.items(each)):
                name = key if type(key) is str else number
                yield ("dict", id(each), name), f"{label}.{name}", value
        for label, each in reachable.lists:
            for number, value in enumerate(_items_of(each)):
                yield ("list", id(each), number), f"{label}[{number}]", value
        for label, each in reachable.keyed:
            for number, key in enumerate(_items_of(each)):
                yield ("keys", id(each), number), f"a key of {label}", key

    def _places_by_name(self) -> Iterator[PlacedValue]:
        reachable = self._reachable
        for label, scope, name in reachable.named:
            yield ("named", id(scope), name), label, scope.get(name, GONE)
        for label, value in reachable.objects:
            yield ("type", id(value), ""), f"the type of {label}", type(value)
            namespace = dict_of(value)
            yield ("attributes", id(value), ""), f"{label}.__dict__", namespace
            if namespace is not None:
                for name in reachable.names_of(value, namespace):
                    yield (
                        ("attribute", id(value), name),
                        f"{label}.{name}",
                        namespace[name],
                    )
        for label, kind, namespace in reachable.classes:
            yield ("mro", id(kind), ""), f"{label}.__mro__", mro_of(kind)
            for name in reachable.relevant(kind, namespace):
                yield ("class", id(kind), name), f"{label}.{name}", namespace[name]
        for label, member, owner in reachable.slots:
            yield ("slot", id(owner), label), label, in_slot(member, owner)


def _name_in(kind: str, name: Any) -> Any:
    """The name of a place; None for a container, whose parts are one place."""
    return name if kind in ("named", "class") else None


# -- all at once -----------------------------------------------------------------------

_requires_grad = operator.attrgetter("requires_grad")
_shape = operator.attrgetter("shape")
_attributes = operator.attrgetter("__dict__")
_cell_contents = operator.attrgetter("cell_contents")
_of_functions = [
    operator.attrgetter(name) for name in ("__code__", "__defaults__", "__kwdefaults__")
]


def _values_of(reachable: ReachableState) -> Callable[[], list[Any]]:
    """Returns a function that collects all current values to watch by identity.

    Empty containers have no values; `_sizes_of` detects when they are filled.
    """
    objects = [each for _, each in reachable.objects]
    holders = [each for each in objects if dict_of(each) is not None]
    plain = [each for each in holders if _has_plain_lookup(type(each))]
    others = [each for each in holders if not _has_plain_lookup(type(each))]
    namespaces = [dict_of(each) for each in holders] + [
        each for _, _, each in reachable.classes
    ]
    dicts = [each for _, each in reachable.dicts if dict.__len__(each)]
    walks = _walks(
        each for _, each in [*reachable.lists, *reachable.keyed] if _items_of(each)
    )
    scopes = [scope for _, scope, _ in reachable.named]
    names = [name for _, _, name in reachable.named]
    class_dicts = [each for _, _, each, _ in reachable.of_classes]
    class_names = [name for _, _, _, name in reachable.of_classes]
    classes = [kind for _, kind, _ in reachable.classes]
    functions = [each for _, each in reachable.functions]
    cells = [each for _, each in reachable.cells]
    full = [each for each in cells if contents(each) is not each]
    empty = [each for each in cells if contents(each) is each]
    members = [member for _, member, _ in reachable.slots]
    owners = [owner for _, _, owner in reachable.slots]
    variables = [each for _, each in reachable.contexts]
    references = [each for _, each in reachable.references]
    local = [each for _, each in reachable.locals]
    flat, gone = itertools.chain.from_iterable, itertools.repeat(GONE)

    def values() -> list[Any]:
        return [
            *map(type, objects),
            *map(_attributes, plain),
            *map(object.__getattribute__, others, itertools.repeat("__dict__")),
            *flat(namespaces),
            *flat(map(dict.values, dicts)),
            *flat(flat(map(walk, containers)) for walk, containers in walks),
            *map(dict.get, scopes, names, gone),
            *map(types.MappingProxyType.get, class_dicts, class_names, gone),
            *map(mro_of, classes),
            *flat(map(get, functions) for get in _of_functions),
            *map(_cell_contents, full),
            *map(contents, empty),
            *map(in_slot, members, owners),
            *map(ContextVar.get, variables, gone),
            *map(_is_dead, references),
            *flat(map(_local_items, local)),
        ]

    return values


def _has_plain_lookup(kind: type) -> bool:
    """Whether an attribute lookup runs no code of the class."""
    looks_up: Any = kind.__getattribute__
    return looks_up is object.__getattribute__


def _identities(values: list[Any]) -> bytes:
    """The addresses of a list's items, read from the memory of the list in CPython.

    This compares thousands of objects at once, without running their code.
    """
    items = ctypes.c_void_p.from_address(id(values) + _LIST_ITEMS).value
    return ctypes.string_at(items or 0, _POINTER * len(values))


_POINTER = ctypes.sizeof(ctypes.c_void_p)
# `ob_item` is the last but one field of a list object, before `allocated`.
_LIST_ITEMS = list.__basicsize__ - 2 * _POINTER


def _sizes_of(reachable: ReachableState) -> Callable[[], list[int]]:
    """Returns a function that collects the sizes of all containers and namespaces."""
    every = [each for _, each in [*reachable.dicts, *reachable.lists, *reachable.keyed]]
    every += [
        namespace
        for _, each in reachable.objects
        if (namespace := dict_of(each)) is not None
    ]
    containers = {id(each): each for each in every}
    plain = [each for each in containers.values() if type(each) in _WALKS]
    plain += [namespace for _, _, namespace in reachable.classes]
    others = _walks(each for each in containers.values() if type(each) not in _WALKS)
    sized = [(len, plain), *((_LENGTHS[walk], each) for walk, each in others)]
    return lambda: [size for length, each in sized for size in map(length, each)]


_WALKS: dict[Any, Any] = {
    collections.OrderedDict: collections.OrderedDict.__iter__,
    dict: dict.__iter__,
    list: list.__iter__,
    set: set.__iter__,
    collections.deque: collections.deque.__iter__,
}
_LENGTHS = {walk: kind.__len__ for kind, walk in _WALKS.items()}


def _walks(containers: Iterable[Any]) -> list[tuple[Any, list[Any]]]:
    """Groups containers by the iterator that runs no code of their classes."""
    groups: dict[Any, list[Any]] = {}
    for each in containers:
        kind = next(kind for kind in _WALKS if isinstance_of(each, (kind,)))
        groups.setdefault(_WALKS[kind], []).append(each)
    return list(groups.items())


def _items_of(container: Any) -> list[Any]:
    ((walk, _),) = _walks([container])
    return list(walk(container))


def _values_in(dicts: Iterable[dict[Any, Any]]) -> Iterator[Any]:
    return itertools.chain.from_iterable(map(dict.values, dicts))


def _local_items(local: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(sorted(vars(local).items()))


def _is_dead(reference: weakref.ref[Any]) -> bool:
    return weakref.ref.__call__(reference) is None


def _equal(one: Any, other: Any) -> bool:
    """Whether two constants are equal; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if type(one) in (float, complex):
        return repr(one) == repr(other)  # 0.0 differs from -0.0
    if type(one) in PLAIN:
        return bool(one == other)
    if type(one) is tuple:
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, types.MethodType):
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    return False


def _shown(value: Any) -> str:
    if value is GONE:
        return "missing"
    if type(value) in PLAIN:
        return repr(value)
    return f"a {type(value).__name__}"
