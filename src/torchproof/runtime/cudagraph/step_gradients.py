"""Keeps `.grad` consistent around the replays of a recorded step.

`.grad` is not an output: autograd sets it, optimizers read it, users set it to None. A
recorded backward always writes to the same memory. So before a replay, the content of
`.grad` is copied to that memory, and afterwards `.grad` refers to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchproof.torch_private import step_capture


@dataclass(eq=False, slots=True)
class _Gradient:
    """The gradient of one parameter before, during and after the recorded run."""

    label: str
    parameter: Tensor
    before: Tensor | None
    planted: Tensor | None = None
    after: Tensor | None = None

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

    def plant(self) -> None:
        """Sets missing gradients to zeros before the eager run.

        This distinguishes a step that accumulates from one that drops gradients first.
        """
        self.begin()
        for each in self._all:
            each.planted = each.before
            if each.before is None and each.parameter.requires_grad:
                each.planted = torch.zeros_like(each.parameter)
            each.set(each.planted)

    def learn(
        self, wrote: Callable[[Tensor], bool], read: Callable[[Tensor], bool]
    ) -> list[Tensor]:
        """Finds the parameters whose gradient the eager run changed.

        Returns the zeros from `plant`, which need not be restored.
        """
        dropped = [g for g in self._all if g.parameter.grad is not g.planted]
        added = [
            g
            for g in self._all
            if g.planted is not None
            and g.parameter.grad is g.planted
            and wrote(g.planted)
        ]
        self._used = dropped + added
        used = {*self._used}
        self._read = [
            g
            for g in self._all
            if g.before is not None and g not in used and read(g.before)
        ]
        self._drops_all = bool(dropped) and not added
        zeros = [
            g.planted
            for g in self._all
            if g.planted is not None and g.planted is not g.before
        ]
        for each in self._all:
            each.planted = None
        return zeros

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
        return bool(present) and all(each.before is not None for each in present)

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
