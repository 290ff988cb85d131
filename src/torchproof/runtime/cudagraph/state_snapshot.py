"""A snapshot of all state that a step can reach besides its arguments.

A replay runs the kernels of one recorded run on the memory of that run. It does not
read again what Python would read: attributes, modules, classes, replaced parameters,
values in closures and globals. So this state is compared with the snapshot before a
result is returned. `quick_check` compares by identity, at C speed, and runs no user
code. Only if an object is not identical, the values are compared one by one.

Modules are watched completely. Of other objects, classes and globals, only the
attributes count that the executed code names: a trainer's counter may change with every
call.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import operator
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torchproof.runtime.cudagraph.executed_code import Execution
from torchproof.runtime.cudagraph.object_state import TENSOR_HOOKS, data_of
from torchproof.runtime.cudagraph.python_undo import PythonUndo
from torchproof.runtime.cudagraph.quick_check import QuickCheck, TensorCheck
from torchproof.runtime.cudagraph.reachable_state import (
    HOOKS,
    PLAIN,
    ReachableState,
    has_plain_memory,
)
from torchproof.runtime.cudagraph.watched_places import GONE, Place


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
        self._checks_abstract_classes = self.ran.checked_abstract_classes
        self._take()

    def unwatchable(self, ran: Execution) -> list[str]:
        """A message for each object that this code reads and that cannot be watched.

        What such an object holds, for example an iterator, cannot be undone either.
        """
        if not self._reachable.opaque and ran is self.ran:
            return []
        return ReachableState(self._step, ran, only_run=True).opaque

    @property
    def must_run_first(self) -> bool:
        """Whether only a real call shows if the step reads what cannot be undone."""
        return not self.ran.codes and self._reachable.hides_state

    def owners(self) -> Iterator[Any]:
        """The objects that the watched places belong to."""
        of_torch = self._reachable.of_torch
        owners = (each.owner for each in self._reachable.watches.every)
        return (each for each in owners if id(each) not in of_torch)

    def restore(self, saved: PythonUndo) -> None:
        """Puts back what was changed in the watched places since they were saved."""
        saved.restore(self._reachable, self.ran.is_forgotten)

    @property
    def whole(self) -> bool:
        """Whether all state is watched; false if there are too many objects."""
        return self._reachable.whole

    @property
    def lacks_scale(self) -> bool:
        """Whether a GradScaler has not created its scale yet."""
        return any(s.is_enabled() and s._scale is None for s in self._reachable.scalers)

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
        """Changes are relative to this moment from now on."""
        if not self.unchanged():
            self._take()

    def _take(self) -> None:
        watches = self._reachable.watches
        self._quick = QuickCheck(watches)
        self._then = self._places()
        self._states = [each.state for each in self.optimizers]
        self._state_dicts = [each for state in self._states for each in state.values()]
        self._entries = list(_values_in(self._state_dicts))
        of_optimizers = [each for each in self._entries if isinstance(each, Tensor)]
        self._tensors = TensorCheck(self.tensors + of_optimizers)
        self._data = self._data_now()
        self._cached = [list(each.values()) for _, each in self._reachable.caches]
        self._hooked = RemovableHandle.next_id
        self._registered = self._registrations()

    def unchanged(self) -> bool:
        """Whether every object is identical to the snapshot."""
        try:
            return (
                RemovableHandle.next_id == self._hooked
                and self._quick.unchanged()
                and self._tensors.unchanged()
                and self._data_now() == self._data
                and self._states_are_there()
                and self._is_still_cached()
                and self._registrations() == self._registered
            )
        except Exception:  # something was deleted, or another thread changes it
            return False

    def _data_now(self) -> list[Any]:
        return [data_of(each) for _, each in self._reachable.arrays]

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
            for (_, now), then in zip(self._reachable.caches, self._cached, strict=True)
        )

    def _registrations(self) -> object:
        """A token that changes when `isinstance` may change for an abstract class."""
        return abc.get_cache_token() if self._checks_abstract_classes else None

    def changes(self) -> list[str]:
        """A message for each change; an equal object is no change."""
        differing = {
            f"{label} was {_shown(then)} and is now {_shown(now)}": None
            for place, label, then, now in self._differing()
            if not self.ran.is_forgotten(place[1], _name_in(place))
        }
        messages = [*differing, *self._changed_tensors()]
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

    def _changed_tensors(self) -> Iterator[str]:
        labels = [label for label, _ in self._reachable.tensors.values()]
        every = itertools.chain(labels, itertools.repeat("state of an optimizer"))
        for label, then, now in zip(
            every, self._tensors.then, self._tensors.now(), strict=False
        ):
            if then[0] != now[0]:
                yield f"{label} has another address"
            elif then != now:
                yield f"the shape, strides, dtype or requires_grad of {label} changed"

    def _new_hooks(self) -> Iterator[str]:
        watched = {id(each.owner) for each in self._reachable.watches.every}
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
        found = False
        for place, *_ in self._differing():
            owner = self._foreign_owner(place)
            if owner is not None:
                self.ran.forget(owner, _name_in(place))
                found = True
        return found

    def forget_the_compiler(self) -> None:
        """Forgets what importing the compiler, or tracing beside calls, has changed."""
        self.forget_foreign_changes()
        self._registered = self._registrations()

    def _foreign_owner(self, place: Place) -> Any:
        """The scope, container or object of torch that a place belongs to."""
        of_torch = self._reachable.of_torch
        return of_torch.get(place[1], of_torch.get((place[1], _name_in(place))))

    def moved(self) -> bool:
        """Whether a tensor has another address, or was replaced by another tensor."""
        tensors = zip(self._tensors.then, self._tensors.now(), strict=True)
        if any(then[0] != now[0] for then, now in tensors):
            return True
        return not self._states_are_there() or any(
            isinstance(then, Tensor) for _, _, then, _ in self._differing()
        )

    def _differing(self) -> Iterator[tuple[Place, str, Any, Any]]:
        """Yields place, label, old and new value for each value that differs."""
        with contextlib.suppress(Exception):  # something was deleted
            if self._quick.unchanged():
                return
        before, after = self._then, self._places()
        for place in {**before, **after}:
            label, old = before.get(place, ("", GONE))
            other, new = after.get(place, ("", GONE))
            if old is not new and not _equal(new, old):
                yield place, label or other, old, new

    def _places(self) -> dict[Place, tuple[str, Any]]:
        """Every value that is watched by identity, with its label."""
        reachable = self._reachable
        places = reachable.watches.places(reachable.names_of)
        return {place: (label, value) for place, label, value in places}


def _name_in(place: Place) -> Any:
    """The name of a place; None for a container, whose parts are one place."""
    kind, _, name = place
    return name if kind.by_name else None


def _values_in(dicts: Iterable[dict[Any, Any]]) -> Iterator[Any]:
    return itertools.chain.from_iterable(map(dict.values, dicts))


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
