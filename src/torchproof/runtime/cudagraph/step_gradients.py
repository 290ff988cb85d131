"""Gradients around a recorded step: where they are before it, and where after.

`.grad` is not an output: autograd sets it, optimizers read it, users set it to None. A
recorded backward writes to the memory it had, so before a replay that memory gets what
`.grad` holds, and afterwards `.grad` is that memory again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchproof.torch_private import step_capture

_grad = operator.attrgetter("grad")


class Gradients:
    """Those of all parameters that the step can see, in one recording."""

    def __init__(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        self._every = list(parameters)
        self._before: list[Tensor | None] = [p.grad for _, p in self._every]
        self._used: list[tuple[str, Tensor]] = []
        self._start: list[Tensor | None] = []
        self._end: list[Tensor | None] = []
        self._taken_up: list[int] = []  # places of those that the recording adds to
        self._planted: list[Tensor | None] = []
        self._read: list[tuple[Tensor, Tensor]] = []  # gradients that stay as they are
        self._adds = self._drops_all = False

    def begin(self) -> None:
        """Before a run that is undone or recorded: `.grad` as it was found."""
        for (_, parameter), before in zip(self._every, self._before, strict=True):
            if parameter.grad is not before:
                parameter.grad = before

    undo = begin

    def plant(self) -> None:
        """Before the eager run: zeros where there is no gradient.

        So a step that adds to what it finds can be told from one that drops it first.
        """
        self.begin()
        self._planted = [
            torch.zeros_like(parameter)
            if before is None and parameter.requires_grad
            else before
            for (_, parameter), before in zip(self._every, self._before, strict=True)
        ]
        for (_, parameter), planted in zip(self._every, self._planted, strict=True):
            if parameter.grad is not planted:
                parameter.grad = planted

    def learn(
        self, wrote: Callable[[Tensor], bool], read: Callable[[Tensor], bool]
    ) -> list[Tensor]:
        """After that run: which parameters it concerns. Returns what was planted."""
        pairs = list(zip(self._every, self._planted, strict=True))
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
            for (_, parameter), before in zip(self._every, self._before, strict=True)
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

    def found(self) -> dict[str, Tensor]:
        return {
            f"gradient of {label}": parameter.grad
            for label, parameter in self._used
            if parameter.grad is not None
        }

    def recorded(self) -> None:
        """After the recording: it begins with these gradients and ends with those."""
        before = {id(p): b for (_, p), b in zip(self._every, self._before, strict=True)}
        self._start = [before[id(parameter)] for parameter in self._parameters]
        self._end = [parameter.grad for parameter in self._parameters]
        self._adds = any(start is not None for start in self._start)
        self._taken_up = [
            place
            for place, (start, end) in enumerate(
                zip(self._start, self._end, strict=True)
            )
            if start is not None and start is end
        ]

    def fits(self) -> bool:
        """Whether this recording does with the gradients at hand what the step would.

        One that begins without a gradient cannot add to it; and gradients that the
        step only reads have to be those that it has read.
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
        """Before a replay: the memory it adds to holds what `.grad` holds."""
        if not self._taken_up:
            return
        absent = []
        for place in self._taken_up:
            parameter, memory = self._parameters[place], self._start[place]
            assert memory is not None
            held = parameter.grad
            if held is memory:
                continue
            if held is None:
                absent.append(memory)
            else:
                memory.copy_(held)
            parameter.grad = memory
        if absent:
            step_capture.zero_all(absent)

    def attach(self) -> None:
        """After a replay: `.grad` is where the recorded backward wrote."""
        for parameter, end in zip(self._parameters, self._end, strict=True):
            if parameter.grad is not end:
                parameter.grad = end
