"""Keeps `.grad` consistent around the replays of a recorded step.

`.grad` is not an output: autograd sets it, optimizers read it, users set it to None. A
recorded backward always writes to the same memory. So before a replay, the content of
`.grad` is copied to that memory, and afterwards `.grad` refers to it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchproof.torch_private import step_capture

_grad = operator.attrgetter("grad")


class Gradients:
    """The gradients of all parameters that the step can reach, in one recording."""

    def __init__(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        self._all = list(parameters)
        self._before: list[Tensor | None] = [p.grad for _, p in self._all]
        self._used: list[tuple[str, Tensor]] = []
        self._start: list[Tensor | None] = []
        self._end: list[Tensor | None] = []
        # indices of gradients that the recording accumulates into
        self._accumulated: list[int] = []
        self._planted: list[Tensor | None] = []
        # gradients that the step only reads
        self._read: list[tuple[Tensor, Tensor]] = []
        self._adds = self._drops_all = False

    def begin(self) -> None:
        """Restores the original `.grad` before a run."""
        for (_, parameter), before in zip(self._all, self._before, strict=True):
            if parameter.grad is not before:
                parameter.grad = before

    undo = begin

    def plant(self) -> None:
        """Sets missing gradients to zeros before the eager run.

        This distinguishes a step that accumulates from one that drops gradients first.
        """
        self.begin()
        self._planted = [
            torch.zeros_like(parameter)
            if before is None and parameter.requires_grad
            else before
            for (_, parameter), before in zip(self._all, self._before, strict=True)
        ]
        for (_, parameter), planted in zip(self._all, self._planted, strict=True):
            if parameter.grad is not planted:
                parameter.grad = planted

    def learn(
        self, wrote: Callable[[Tensor], bool], read: Callable[[Tensor], bool]
    ) -> list[Tensor]:
        """Finds the parameters whose gradient the eager run changed.

        Returns the zeros from `plant`, which need not be restored.
        """
        pairs = list(zip(self._all, self._planted, strict=True))
        dropped = [each for each, planted in pairs if each[1].grad is not planted]
        added = [
            each
            for each, planted in pairs
            if planted is not None and each[1].grad is planted and wrote(planted)
        ]
        self._used = dropped + added
        used = {id(parameter) for _, parameter in self._used}
        self._read = [
            (parameter, before)
            for (_, parameter), before in zip(self._all, self._before, strict=True)
            if before is not None and id(parameter) not in used and read(before)
        ]
        self._parameters = [parameter for _, parameter in self._used]
        self._drops_all = bool(dropped) and not added
        new = [
            planted
            for planted, before in zip(self._planted, self._before, strict=True)
            if planted is not None and planted is not before
        ]
        self._planted = []
        return new

    def current(self) -> dict[str, Tensor]:
        return {
            f"gradient of {label}": parameter.grad
            for label, parameter in self._used
            if parameter.grad is not None
        }

    def recorded(self) -> None:
        """Stores the gradients at the start and at the end of the recording."""
        before = {id(p): b for (_, p), b in zip(self._all, self._before, strict=True)}
        self._start = [before[id(parameter)] for parameter in self._parameters]
        self._end = [parameter.grad for parameter in self._parameters]
        self._adds = any(start is not None for start in self._start)
        self._accumulated = [
            place
            for place, (start, end) in enumerate(
                zip(self._start, self._end, strict=True)
            )
            if start is not None and start is end
        ]

    def fits(self) -> bool:
        """Whether a replay treats the current gradients as the step would.

        A recording that started without gradients cannot accumulate into them.
        Gradients that the step only reads must be the same tensors as in the recording.
        """
        if any(parameter.grad is not before for parameter, before in self._read):
            return False
        if not self._used or self._drops_all:
            return True
        absent = [each is None for each in map(_grad, self._parameters)]
        if not self._adds:
            return all(absent)
        begun = [start is None for start in self._start]
        return not all(absent) and not any(map(operator.gt, begun, absent))

    def arrange(self) -> None:
        """Copies `.grad` to the memory that the replay accumulates into."""
        if not self._accumulated:
            return
        absent = []
        for place in self._accumulated:
            parameter, memory = self._parameters[place], self._start[place]
            assert memory is not None
            gradient = parameter.grad
            if gradient is memory:
                continue
            if gradient is None:
                absent.append(memory)
            else:
                memory.copy_(gradient)
            parameter.grad = memory
        if absent:
            step_capture.zero_all(absent)

    def attach(self) -> None:
        """Sets `.grad` to the memory that the replay wrote."""
        for parameter, end in zip(self._parameters, self._end, strict=True):
            if parameter.grad is not end:
                parameter.grad = end
