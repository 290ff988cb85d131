"""Keeps `.grad` consistent around the replays of a recorded step.

`.grad` is not an output: autograd sets it, optimizers read it, users set it to None. A
recorded backward always writes to the same memory. So before a replay, the content of
`.grad` is copied to that memory, and afterwards `.grad` refers to it.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchproof.runtime.cudagraph.reachable_state import has_plain_memory
from torchproof.runtime.tensors.storages import Copies
from torchproof.torch_private import step_capture


@dataclass(frozen=True)
class _Offloaded:
    """A gradient that takes no device memory, unless something else refers to it."""

    copy: Tensor
    device: torch.device
    tensor: weakref.ref[Tensor]
    storage: weakref.ref[torch.UntypedStorage]
    place: tuple[int, torch.Size, tuple[int, ...]]  # in the storage

    @classmethod
    def of(cls, tensor: Tensor, copy: Tensor) -> _Offloaded:
        storage = weakref.ref(tensor.untyped_storage())
        place = int(tensor.storage_offset()), tensor.shape, tensor.stride()
        return cls(copy, tensor.device, weakref.ref(tensor), storage, place)

    def back(self) -> Tensor:
        """The gradient; in the same memory if that still exists."""
        if (tensor := self.tensor()) is not None:
            return tensor
        if (storage := self.storage()) is not None:
            live = torch.empty(0, dtype=self.copy.dtype, device=self.device)
            return live.set_(storage, *self.place)
        return self.copy.to(self.device)


@dataclass(eq=False, slots=True)
class _Gradient:
    """The gradient of one parameter before, during and after the recorded run."""

    label: str
    parameter: Tensor
    before: Tensor | None
    # Weak: a step that drops its gradients frees the zeros before it needs memory.
    zeros: weakref.ref[Tensor] | None = None
    after: Tensor | None = None
    offloaded: _Offloaded | None = None  # in place of `before`
    had_gradient: bool = field(init=False)

    def __post_init__(self) -> None:
        self.had_gradient = self.before is not None

    @property
    def at_start(self) -> Tensor | None:
        """The gradient when the eager run began; None if it no longer exists."""
        return self.before if self.zeros is None else self.zeros()

    @property
    def is_replaced(self) -> bool:
        """Whether the step has dropped the gradient, or set another one."""
        zeros_are_gone = self.zeros is not None and self.zeros() is None
        return zeros_are_gone or _gradient_of(self.parameter) is not self.at_start

    @property
    def is_attached(self) -> bool:
        """Whether `.grad` is in the memory of the recording."""
        return self.after is not None and self.parameter.grad is self.after

    def set_zeros(self) -> None:
        self.zeros = None
        if self.before is None and self.parameter.requires_grad:
            zeros = torch.zeros_like(self.parameter)
            self.zeros = weakref.ref(zeros)
            self.set(zeros)

    def offload(self, copies: Copies) -> None:
        tensor = self.before
        if tensor is None or tensor.requires_grad or not has_plain_memory(tensor):
            return
        if (copy := copies.make(tensor)) is not None:
            self.offloaded = _Offloaded.of(tensor, copy)
            self.before = None

    def reload(self) -> None:
        if self.offloaded is not None:
            self.before, self.offloaded = self.offloaded.back(), None

    def set(self, gradient: Tensor | None) -> None:
        if _gradient_of(self.parameter) is not gradient:
            self.parameter.grad = gradient


def _gradient_of(tensor: Tensor) -> Tensor | None:
    """`.grad`, without a warning if the step has written results into the tensor."""
    if tensor.is_leaf:
        return tensor.grad
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")
        return tensor.grad


class Gradients:
    """The gradients of all parameters that the step can reach, in one recording."""

    _numbers = itertools.count()

    def __init__(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        self.number = next(self._numbers)  # recordings are made in this order
        self._all = [_Gradient(label, each, each.grad) for label, each in parameters]
        self._used: list[_Gradient] = []
        # The recording adds to them, or computes with them before it drops them.
        self._accumulated: list[_Gradient] = []
        self._read: list[_Gradient] = []  # the step only reads them
        self._adds = self._drops_all = self._uses_dropped = False

    def begin(self) -> None:
        """Sets `.grad` as before the step; to None if it is offloaded."""
        for each in self._all:
            each.set(each.before)

    def undo(self) -> None:
        """Restores the original `.grad`."""
        self.reload()
        self.begin()

    def offload(self) -> None:
        """Frees the device memory of gradients that the step is likely to drop."""
        copies = Copies()
        for each in self._all:
            each.offload(copies)
        self.begin()

    def reload(self) -> None:
        for each in self._all:
            each.reload()

    @property
    def may_stay_offloaded(self) -> bool:
        """Whether the last run dropped all gradients that are offloaded."""
        used = {*self._used}
        return self._drops_all and all(
            each in used for each in self._all if each.offloaded is not None
        )

    @property
    def are_offloaded(self) -> bool:
        return any(each.offloaded is not None for each in self._all)

    def set_zeros(self) -> list[Tensor]:
        """Sets missing gradients to zeros before the eager run, and returns the zeros.

        This distinguishes a step that accumulates from one that drops gradients first.
        """
        self.begin()
        for each in self._all:
            each.set_zeros()
        references = (each.zeros() for each in self._all if each.zeros is not None)
        return [zeros for zeros in references if zeros is not None]

    def learn(
        self,
        wrote: Callable[[Tensor], bool],
        read: Callable[[Tensor], bool],
        *,
        used_zeros: bool,
        may_drop: bool,
    ) -> None:
        """Finds the parameters whose gradient the eager run changed.

        `used_zeros` says that it computed with the zeros from `set_zeros`. Without
        `may_drop`, no code of the step sets a gradient, and autograd adds to them.
        """
        replaced = [g for g in self._all if g.is_replaced]
        # A backward that can be differentiated replaces what it adds to.
        dropped = [g for g in replaced if may_drop or g.before is not None]
        added = [g for g in replaced if g not in dropped]
        added += [
            g
            for g in self._all
            if not g.is_replaced and g.at_start is not None and wrote(g.at_start)
        ]
        self._used = dropped + added
        used = {*self._used}
        self._read = [
            g
            for g in self._all
            if g.before is not None and g not in used and read(g.before)
        ]
        self._uses_dropped = used_zeros or any(
            g.before is not None and read(g.before) for g in dropped
        )
        self._drops_all = bool(dropped) and not added and not self._uses_dropped
        for each in self._all:
            each.zeros = None

    @property
    def are_used(self) -> bool:
        """Whether the eager run changed a gradient."""
        return bool(self._used)

    @property
    def exist(self) -> bool:
        """Whether parameters have gradients that a replay would change or replace."""
        return any(each.parameter.grad is not None for each in self._used)

    def learn_from(self, other: Gradients) -> list[Tensor]:
        """Takes over what another recording of the same step has learned.

        Returns the gradients that the step may write to, which have to be restored.
        """
        used = {id(each.parameter) for each in other._used}
        read = {id(each.parameter) for each in other._read}
        self._used = [g for g in self._all if id(g.parameter) in used]
        self._read = [
            g for g in self._all if g.before is not None and id(g.parameter) in read
        ]
        self._drops_all, self._uses_dropped = other._drops_all, other._uses_dropped
        if self._drops_all:  # to keep them would keep their memory
            return []
        return [g.before for g in self._used if g.before is not None]

    def current(self) -> dict[str, Tensor]:
        return {
            f"gradient of {each.label}": each.parameter.grad
            for each in self._used
            if each.parameter.grad is not None
        }

    def recorded(self) -> None:
        """Stores the gradients at the end of the recording."""
        for each in self._used:
            each.after = each.parameter.grad
        self._adds = any(each.before is not None for each in self._used)
        self._accumulated = [
            g
            for g in self._used
            if g.before is not None and (g.before is g.after or self._uses_dropped)
        ]

    def fits(self) -> bool:
        """Whether a replay treats the current gradients as the step would.

        A recording that started without gradients cannot accumulate into them.
        Gradients that the step only reads must be the same tensors as in the recording.
        """
        if any(each.parameter.grad is not each.before for each in self._read):
            return False
        if not self._used or self._drops_all:
            return True
        present = [each for each in self._used if each.parameter.grad is not None]
        if not self._adds:
            return not present
        return bool(present) and all(each.had_gradient for each in present)

    def keep(self) -> None:
        """Ends `undo`: frees earlier gradients that no replay reads or adds to."""
        needed = {*self._accumulated, *self._read}
        for each in self._used:
            if each not in needed:
                each.before = each.offloaded = None
        self._all = []

    def fill(self) -> None:
        """Copies `.grad` to the memory that the replay reads."""
        absent = []
        for each in self._accumulated:
            gradient, memory = each.parameter.grad, each.before
            assert memory is not None
            if gradient is None:
                absent.append(memory)
            elif gradient is not memory:
                memory.copy_(gradient)
            each.set(memory)
        if absent:
            step_capture.zero_all(absent)

    def attach(self) -> None:
        """Sets `.grad` to the memory that the replay wrote."""
        for each in self._used:
            each.set(each.after)

    @property
    def are_attached(self) -> bool:
        """Whether a `.grad` is in the memory of this recording."""
        return any(each.is_attached for each in self._used)

    def move(self, next_replay: Gradients) -> None:
        """Copies each `.grad` that the next replay does not set out of the memory."""
        replaced = {id(each.parameter) for each in next_replay._used}
        for each in self._used:
            if each.is_attached and id(each.parameter) not in replaced:
                assert each.after is not None
                each.set(each.after.detach().clone())


class AttachedGradients:
    """The gradients that are in the memory of recordings of one pool.

    A replay overwrites the memory that was free when it was recorded. Later recordings
    may have put gradients there.
    """

    def __init__(self) -> None:
        self._recordings: list[Gradients] = []  # the latest that was replayed is last

    def move_out_of(self, replay: Gradients) -> None:
        """Copies gradients that a replay would overwrite."""
        if self._recordings and self._recordings[-1] is replay:
            return
        for each in self._recordings:
            if each.number > replay.number:
                each.move(replay)

    def add(self, replay: Gradients) -> None:
        """The gradients of a replay are attached."""
        if self._recordings and self._recordings[-1] is replay:
            return
        others = [each for each in self._recordings if each is not replay]
        self._recordings = [*(each for each in others if each.are_attached), replay]
