"""Everything a step can see besides its arguments, watched for changes.

A replay runs the kernels of one recorded run on the memory of that run. What Python
would have looked at again (attributes, modules, parameters that were replaced, values
in closures and globals) it does not look at: so it is compared before an answer is
handed out. The comparison is by identity, at C speed; only where something is not the
very same object it is looked at one by one.

Modules are watched whole. Of other objects and of globals only those attributes count
that the step's own code names: a trainer's counter may change with every call.
"""

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torchproof.replay.reach import HOOKS, PLAIN, Reach, contents, has_plain_memory


class Sight:
    """What was found, and how it was when `refresh` was called last."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self._reach = reach = Reach(step)
        self.modules: list[nn.Module] = reach.modules
        self.optimizers: list[torch.optim.Optimizer] = reach.optimizers
        self._scalers: list[torch.amp.GradScaler] = reach.scalers
        self._contents = [each for _, each in reach.dicts], [e for _, e in reach.lists]
        self._scopes = [scope for _, scope, _ in reach.named]
        self._keys = [name for _, _, name in reach.named]
        self._owners = [owner for _, owner, _ in reach.attributes]
        self._owned = [name for _, _, name in reach.attributes]
        self._closed = [cell for _, cell in reach.cells]
        self._keyed = [each for _, each in reach.keyed]
        self._arrays = [each for _, each in reach.arrays]
        self.refresh()

    @property
    def whole(self) -> bool:
        """Whether all of it is watched: there may be too much."""
        return self._reach.whole

    @property
    def lacks_scale(self) -> bool:
        """Whether a scaler has still to make the numbers that it counts with."""
        return any(s.is_enabled() and s._scale is None for s in self._scalers)

    @property
    def strange(self) -> list[str]:
        """Tensors whose memory cannot be watched, in words."""
        return [
            f"{label} is a {type(tensor).__name__} of layout {tensor.layout}"
            for label, tensor in self._reach.strange
        ]

    @property
    def parameters(self) -> list[tuple[str, Tensor]]:
        """Leaves that may get a gradient, each once."""
        return [
            (label, tensor)
            for label, tensor in self._reach.tensors.values()
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
        return [tensor for _, tensor in self._reach.tensors.values()]

    # -- watching ------------------------------------------------------------------

    def refresh(self) -> None:
        """From here on, changes are those since this moment."""
        self._values = list(self._every_value())
        self._then = self._places()
        self._sizes = self._count()
        self._states = [each.state for each in self.optimizers]
        self._books = [book for state in self._states for book in state.values()]
        self._entries = list(_every(self._books))
        self._watched = [tensor for _, tensor in self._reach.tensors.values()]
        self._watched += [each for each in self._entries if isinstance(each, Tensor)]
        # Storages stay while they are watched: no other tensor gets their address.
        self._kept = [tensor.detach() for tensor in self._watched]
        self._addresses = list(map(Tensor.data_ptr, self._watched))
        self._layouts = self._layouts_now()
        self._learning = list(map(_requires_grad, self._watched))
        self._numbers = list(map(_numbers, self._arrays))
        self._hooked = RemovableHandle.next_id

    def unchanged(self) -> bool:
        """Whether everything is the very same as when it was refreshed."""
        return (
            RemovableHandle.next_id == self._hooked
            and self._count() == self._sizes
            and all(map(operator.is_, self._every_value(), self._values))
            and list(map(Tensor.data_ptr, self._watched)) == self._addresses
            and self._layouts_now() == self._layouts
            and list(map(_requires_grad, self._watched)) == self._learning
            and list(map(_numbers, self._arrays)) == self._numbers
            and self._states_are_there()
        )

    def _layouts_now(self) -> tuple[list[Any], list[Any]]:
        return list(map(_shape, self._watched)), list(map(Tensor.stride, self._watched))

    def _states_are_there(self) -> bool:
        """Whether the optimizers work on the state that they worked on."""
        now = [each.state for each in self.optimizers]
        return (
            all(map(operator.is_, now, self._states))
            and sum(map(len, now)) == len(self._books)
            and sum(map(len, self._books)) == len(self._entries)
            and all(map(operator.is_, _every(self._books), self._entries))
        )

    def changes(self) -> list[str]:
        """What is not equal any more, in words; equal things are taken as they are."""
        told = [
            f"{label} was {_shown(then)} and is {_shown(now)}"
            for label, then, now in self._differing()
        ]
        if not told and self._count() != self._sizes:
            told.append("something was added or taken away")
        labels = [label for label, _ in self._reach.tensors.values()]
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
                told.append(f"{label} lies elsewhere in memory")
            elif (tensor.shape, tensor.stride()) != (shape, strides):
                told.append(f"{label} has another shape or other strides")
            elif tensor.requires_grad != learning:
                told.append(f"{label}.requires_grad is {tensor.requires_grad}")
        for (label, array), then in zip(self._reach.arrays, self._numbers, strict=True):
            if _numbers(array) != then:
                told.append(f"{label} holds other numbers")
        if not self._states_are_there():
            told.append("the state of an optimizer was replaced")
        for module in self.modules:
            for name in HOOKS:
                hooks = module.__dict__.get(name)
                watched = any(hooks is each for _, each in self._reach.dicts)
                if hooks and not watched:
                    told.append(f"a hook was added to a {type(module).__name__}")
        return told

    def moved(self) -> bool:
        """Whether a tensor lies elsewhere in memory, or was replaced by another."""
        if list(map(Tensor.data_ptr, self._watched)) != self._addresses:
            return True
        return not self._states_are_there() or any(
            isinstance(then, Tensor) for _, then, _ in self._differing()
        )

    def _differing(self) -> Iterator[tuple[str, Any, Any]]:
        """What is another object now, and not an equal one: label, then, now."""
        before, after = self._then, self._places()
        for place in {**before, **after}:
            label, old = before.get(place, ("", _GONE))
            other, new = after.get(place, ("", _GONE))
            if old is not new and not _equal(new, old):
                yield label or other, old, new

    def _every_value(self) -> Iterator[Any]:
        dicts, lists = self._contents
        return itertools.chain(
            _every(dicts),
            itertools.chain.from_iterable(lists),
            itertools.chain.from_iterable(self._keyed),
            map(dict.get, self._scopes, self._keys, itertools.repeat(_GONE)),
            map(getattr, self._owners, self._owned, itertools.repeat(_GONE)),
            map(contents, self._closed),
        )

    def _places(self) -> dict[tuple[Any, ...], tuple[str, Any]]:
        """Everything that is watched, by its place: a label and the value."""
        reach, found = self._reach, dict[tuple[Any, ...], tuple[str, Any]]()
        for number, (label, each) in enumerate(reach.dicts):
            for key, value in each.items():
                found["dict", number, key] = f"{label}.{key}", value
        for number, (label, items) in enumerate(reach.lists):
            for index, value in enumerate(items):
                found["list", number, index] = f"{label}[{index}]", value
        for number, (label, each) in enumerate(reach.keyed):
            for index, key in enumerate(each):
                found["keys", number, index] = f"a key of {label}", key
        for number, (label, scope, name) in enumerate(reach.named):
            found["named", number] = label, scope.get(name, _GONE)
        for number, (label, owner, name) in enumerate(reach.attributes):
            found["attribute", number] = label, getattr(owner, name, _GONE)
        for number, (label, cell) in enumerate(reach.cells):
            found["cell", number] = label, contents(cell)
        return found

    def _count(self) -> int:
        dicts, lists = self._contents
        return sum(map(len, itertools.chain(dicts, lists, self._keyed)))


_GONE = object()
_requires_grad = operator.attrgetter("requires_grad")
_shape = operator.attrgetter("shape")


def _every(dicts: Iterable[dict[Any, Any]]) -> Iterator[Any]:
    return itertools.chain.from_iterable(map(dict.values, dicts))


def _numbers(array: Any) -> tuple[Any, ...]:
    return array.shape, array.dtype, array.tobytes()


def _equal(one: Any, other: Any) -> bool:
    """Numbers and words may be equal without being the same object; NaN is NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, PLAIN):
        return bool(one == other) or (one != one and other != other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, types.MethodType):
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    return False


def _shown(value: Any) -> str:
    if value is _GONE:
        return "not there"
    if isinstance(value, PLAIN):
        return repr(value)
    return f"a {type(value).__name__}"
