"""Optimizers inside a recorded step: what a capture needs of them, and their settings.

A recorded `optimizer.step()` must not ask the host for anything, so step counters live
on the device (`capturable`), and the learning rate is read from memory, where a
schedule's next value is written before a replay. `param_groups` keep the numbers that
users and schedulers put there. Other settings are part of the recording: if one
changes, the step is recorded again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Group = dict[str, Any]


class LearningRates:
    """The learning rates of all groups, as numbers for people and as memory."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = list(optimizers)
        self._memory: list[Tensor | None] = []
        self._written: list[float | None] = []

    def prepare(self) -> list[str]:
        """Makes every optimizer fit to be captured; says what it did."""
        notes = []
        for optimizer in self.optimizers:
            changed = False
            for group in optimizer.param_groups:
                if group.get("capturable") is False and _on_gpu(group):
                    group["capturable"] = changed = True
                    _counters_to_device(optimizer, group)
            if changed:
                name = type(optimizer).__name__
                notes.append(f"{name}: capturable=True, its counters are on the device")
                # It would warn whenever a step runs outside of a capture.
                optimizer._warned_capturable_if_run_uncaptured = True
        for group in self._groups():
            self._memory.append(_memory_for(group))
            self._written.append(None)
        return notes

    def _groups(self) -> Iterator[Group]:
        for optimizer in self.optimizers:
            yield from optimizer.param_groups

    @contextlib.contextmanager
    def in_memory(self) -> Iterator[None]:
        """The optimizers read their learning rates from memory."""
        kept = []
        self.write()
        for group, memory in zip(self._groups(), self._memory, strict=True):
            kept.append((group, dict(group)))
            if memory is not None:
                group["lr"] = memory
                if "capturable" not in group:  # SGD reads a tensor only when fused
                    group.update(fused=True, foreach=False)
        try:
            yield
        finally:
            for group, before in kept:
                for name in ("lr", "fused", "foreach"):
                    if name in before:
                        group[name] = before[name]

    def write(self) -> None:
        """The numbers that stand in the groups, into memory."""
        for number, (group, memory) in enumerate(
            zip(self._groups(), self._memory, strict=True)
        ):
            rate = group["lr"]
            if memory is None or rate is memory:
                continue
            if isinstance(rate, Tensor):
                memory.copy_(rate, non_blocking=True)
            elif rate != self._written[number]:
                memory.fill_(rate)
                self._written[number] = rate

    def settings(self) -> list[dict[str, Any]]:
        """All other settings, as they stand in the groups."""
        return [_settings(group, memory) for group, memory in self._both()]

    def changes(self, before: list[dict[str, Any]]) -> list[str]:
        now = self.settings()
        if now == before:
            return []
        if len(now) != len(before):
            return ["an optimizer has other groups of parameters"]
        return [
            f"an optimizer's {name} was {then.get(name)!r} and is {group.get(name)!r}"
            for group, then in zip(now, before, strict=True)
            for name in {**then, **group}
            if then.get(name) != group.get(name)
        ]

    def _both(self) -> Iterator[tuple[Group, Tensor | None]]:
        for number, group in enumerate(self._groups()):
            known = number < len(self._memory)
            yield group, self._memory[number] if known else None

    def states(self) -> list[dict[Any, set[Any]]]:
        """Which parameters have state, and of what kind."""
        return [
            {parameter: set(state) for parameter, state in each.state.items()}
            for each in self.optimizers
        ]

    def forget_new_states(self, before: list[dict[Any, set[Any]]]) -> bool:
        """Drops state that was not there before; whether there was any."""
        found = False
        for optimizer, known in zip(self.optimizers, before, strict=True):
            for parameter, state in list(optimizer.state.items()):
                for name in set(state) - known.get(parameter, set()):
                    found = True
                    del state[name]
                if parameter not in known:
                    del optimizer.state[parameter]
        return found

    def numbers(self) -> list[Any]:
        """As they stand in the groups; a step that changes them cannot be replayed."""
        return [
            float(group["lr"]) if not isinstance(group["lr"], Tensor) else group["lr"]
            for group in self._groups()
        ]


def _memory_for(group: Group) -> Tensor | None:
    """Memory for the learning rate, where the optimizer can read it from there."""
    if "lr" not in group or not group["params"]:
        return None
    if "capturable" not in group and not _can_be_fused(group):
        return None
    device = group["params"][0].device
    return torch.zeros((), dtype=torch.float32, device=device)


def _on_gpu(group: Group) -> bool:
    return all(parameter.is_cuda for parameter in group["params"])


def _can_be_fused(group: Group) -> bool:
    own = {"momentum", "dampening", "nesterov", "fused"} <= group.keys()  # SGD's
    floats = all(parameter.is_floating_point() for parameter in group["params"])
    return own and floats and _on_gpu(group)


def _counters_to_device(optimizer: Optimizer, group: Group) -> None:
    for parameter in group["params"]:
        state = optimizer.state.get(parameter)
        if state is not None and state.get("step") is not None:
            state["step"] = torch.as_tensor(
                state["step"], dtype=torch.float32, device=parameter.device
            )


def _settings(group: Group, memory: Tensor | None) -> dict[str, Any]:
    own = {"params", "initial_lr", *(("lr",) if memory is not None else ())}
    plain = {
        name: value
        for name, value in group.items()
        if name not in own and not isinstance(value, Tensor)
    }
    return plain | {"parameters": len(group["params"])}
