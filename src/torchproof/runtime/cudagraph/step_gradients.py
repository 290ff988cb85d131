"""Keeps `.grad` consistent around the replays of a recorded step.

`.grad` is not an output: autograd sets it, optimizers read it, users set it to None. A
recorded backward always writes to the same memory. So before a replay, the content of
`.grad` is copied to that memory, and afterwards `.grad` refers to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchproof.torch_private import step_capture


@dataclass(eq=False, slots=True)
class _Gradient:
    """The gradient of one parameter before, during and after the recorded run."""

    label: str
    parameter: Tensor
    before: Tensor | None
    # Weak: a step that drops its gradients frees the zeros before it needs memory.
    planted: weakref.ref[Tensor] | None = None
    after: Tensor | None = None
    had_gradient: bool = field(init=False)

    def __post_init__(self) -> None:
        self.had_gradient = self.before is not None

    @property
    def at_start(self) -> Tensor | None:
        """The gradient when the eager run began; None if it no longer exists."""
        return self.before if self.planted is None else self.planted()

    @property
    def is_replaced(self) -> bool:
        """Whether the step has dropped the gradient, or set another one."""
        zeros_are_gone = self.planted is not None and self.planted() is None
        return zeros_are_gone or self.parameter.grad is not self.at_start

    def plant(self) -> None:
        self.planted = None
        if self.before is None and self.parameter.requires_grad:
            zeros = torch.zeros_like(self.parameter)
            self.planted = weakref.ref(zeros)
            self.set(zeros)

    def set(self, gradient: Tensor | None) -> None:
        if self.parameter.grad is not gradient:
            self.parameter.grad = gradient


class Gradients:
    """The gradients of all parameters that the step can reach, in one recording."""

    def __init__(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        self._all = [_Gradient(label, each, each.grad) for label, each in parameters]
        self._used: list[_Gradient] = []
        self._accumulated: list[_Gradient] = []  # the recording adds to them
        self._read: list[_Gradient] = []  # the step only reads them
        self._adds = self._drops_all = False

    def begin(self) -> None:
        """Restores the original `.grad` before a run."""
        for each in self._all:
            each.set(each.before)

    undo = begin

    def plant(self) -> list[Tensor]:
        """Sets missing gradients to zeros before the eager run, and returns the zeros.

        This distinguishes a step that accumulates from one that drops gradients first.
        """
        self.begin()
        for each in self._all:
            each.plant()
        planted = (each.planted() for each in self._all if each.planted is not None)
        return [zeros for zeros in planted if zeros is not None]

    def learn(
        self, wrote: Callable[[Tensor], bool], read: Callable[[Tensor], bool]
    ) -> None:
        """Finds the parameters whose gradient the eager run changed."""
        dropped = [g for g in self._all if g.is_replaced]
        added = [
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
        self._drops_all = bool(dropped) and not added
        for each in self._all:
            each.planted = None

    @property
    def are_used(self) -> bool:
        """Whether the eager run changed a gradient."""
        return bool(self._used)

    def learn_from(self, other: Gradients) -> list[Tensor]:
        """Takes over what another recording of the same step has learned.

        Returns the gradients that the step adds to, which have to be restored.
        """
        used = {id(each.parameter) for each in other._used}
        read = {id(each.parameter) for each in other._read}
        self._used = [g for g in self._all if id(g.parameter) in used]
        self._read = [
            g for g in self._all if g.before is not None and id(g.parameter) in read
        ]
        self._drops_all = other._drops_all
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
            g for g in self._used if g.before is not None and g.before is g.after
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
                each.before = None
        self._all = []

    def arrange(self) -> None:
        """Copies `.grad` to the memory that the replay accumulates into."""
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
