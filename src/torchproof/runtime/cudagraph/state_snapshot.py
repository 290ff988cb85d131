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

import contextlib
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torchproof.runtime.cudagraph.executed_code import Execution
from torchproof.runtime.cudagraph.object_state import PLAIN
from torchproof.runtime.cudagraph.quick_check import QuickCheck, TensorCheck
from torchproof.runtime.cudagraph.reachable_state import (
    ReachableState,
)
from torchproof.runtime.cudagraph.watched_places import GONE, Watch, hooks_of


class StateSnapshot:
    """The reachable state at the time of the last `refresh`."""

    def __init__(self, step: Callable[..., Any], ran: Execution | None = None) -> None:
        self._step = step
        self.ran = Execution() if ran is None else ran
        self.extend()

    def extend(self) -> None:
        """Also watches what the code reads that has run since."""
        self.reachable = ReachableState(self._step, self.ran)
        self._take()

    @property
    def must_run_first(self) -> bool:
        """Whether only a real call shows if the step reads what cannot be undone."""
        return not self.ran.codes and self.reachable.hides_state

    # -- watching ------------------------------------------------------------------

    def refresh(self) -> None:
        """Changes are relative to this moment from now on."""
        if not self.unchanged():
            self._take()

    def _take(self) -> None:
        self._quick = QuickCheck(self.reachable.watches)
        self._then = self._values()
        of_optimizers = [
            each
            for optimizer in self.reachable.optimizers
            for state in optimizer.state.values()
            for each in dict.values(state)
            if isinstance(each, Tensor)
        ]
        self._tensors = TensorCheck(self.reachable.tensors + of_optimizers)
        self._hook_id = RemovableHandle.next_id  # counts up with each hook

    def unchanged(self) -> bool:
        """Whether every object is identical to the snapshot."""
        try:
            return (
                RemovableHandle.next_id == self._hook_id
                and self._quick.unchanged()
                and self._tensors.unchanged()
            )
        except Exception:  # something was deleted, or another thread changes it
            return False

    def changes(self) -> list[str]:
        """A message for each change; an equal object is no change."""
        messages = {
            f"{watch.label_of(name)} was {_shown(then)} and is now {_shown(now)}": None
            for watch, name, then, now in self._differing()
        }
        messages |= dict.fromkeys(self._changed_tensors())
        return [*messages, *self._new_hooks()]

    def _changed_tensors(self) -> Iterator[str]:
        labels = [label for label, _ in self.reachable.labelled_tensors]
        every = itertools.chain(labels, itertools.repeat("state of an optimizer"))
        for label, then, now in zip(
            every, self._tensors.then, self._tensors.now(), strict=False
        ):
            if then[0] != now[0]:
                yield f"{label} has another address"
            elif then != now:
                yield f"the shape, strides, dtype or requires_grad of {label} changed"

    def _new_hooks(self) -> Iterator[str]:
        """Hooks in dicts that are not watched, because they had none."""
        watched = {id(each.owner) for each in self.reachable.watches.every}
        reachable = self.reachable
        owners: list[tuple[str, nn.Module | Tensor]] = [*reachable.labelled_tensors]
        owners += [(f"a {type(each).__name__}", each) for each in reachable.modules]
        for label, owner in owners:
            for _, hooks in hooks_of(owner):
                if id(hooks) not in watched:
                    yield f"a hook was added to {label}"

    def moved(self) -> bool:
        """Whether a tensor has another address, or was replaced by another tensor."""
        tensors = zip(self._tensors.then, self._tensors.now(), strict=True)
        if any(then[0] != now[0] for then, now in tensors):
            return True
        return any(_holds_tensor(then) for _, _, then, _ in self._differing())

    def _differing(self) -> Iterator[tuple[Watch, Any, Any, Any]]:
        """Yields watch, name, old and new value for each value that differs."""
        with contextlib.suppress(Exception):  # something was deleted
            if self._quick.unchanged():
                return
        watches = self.reachable.watches.every
        for watch, before, after in zip(
            watches, self._then, self._values(), strict=True
        ):
            for name in {**before, **after}:
                then, now = before.get(name, GONE), after.get(name, GONE)
                if then is not now and not _equal(now, then):
                    yield watch, name, then, now

    def _values(self) -> list[dict[Any, Any]]:
        """The values of each watch, by name."""
        reachable = self.reachable
        return [watch.values(reachable.names_of) for watch in reachable.watches.every]


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


def _holds_tensor(value: Any) -> bool:
    """Whether it is a tensor, or contains some as the state of an optimizer does."""
    if isinstance(value, dict):
        return any(map(_holds_tensor, dict.values(value)))
    return isinstance(value, Tensor)


def _shown(value: Any) -> str:
    if value is GONE:
        return "missing"
    if type(value) in PLAIN:
        return repr(value)
    return f"a {type(value).__name__}"
