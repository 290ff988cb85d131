"""Prepares optimizers for recorded steps, and watches their settings.

A recorded `optimizer.step()` must not read from the host. So step counters are on the
device (`capturable`), and the learning rate is read from device memory, which gets the
scheduler's current value before each replay. `param_groups` keep the numbers that users
and schedulers set. All other settings are part of the recording: if one changes, the
step is recorded again.
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
    """The learning rates of all parameter groups, mirrored in device memory."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = list(optimizers)
        self._memory: list[Tensor | None] = []
        self._written: list[float | None] = []

    def prepare(self) -> list[str]:
        """Makes every optimizer capturable; returns a note for each change."""
        notes = []
        for optimizer in self.optimizers:
            changed = False
            for group in optimizer.param_groups:
                if group.get("capturable") is False and _on_gpu(group):
                    group["capturable"] = changed = True
                    _counters_to_device(optimizer, group)
            if changed:
                name = type(optimizer).__name__
                notes.append(
                    f"{name}: set capturable=True and moved its step counters to the"
                    " device"
                )
                # Otherwise it warns at every step outside of a capture.
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
        """Within this, the optimizers read their learning rates from device memory."""
        originals = []
        self.write()
        for group, memory in zip(self._groups(), self._memory, strict=True):
            originals.append((group, dict(group)))
            if memory is not None:
                group["lr"] = memory
                if "capturable" not in group:  # SGD accepts a tensor only if fused
                    group.update(fused=True, foreach=False)
        try:
            yield
        finally:
            for group, before in originals:
                for name in ("lr", "fused", "foreach"):
                    if name in before:
                        group[name] = before[name]

    def write(self) -> None:
        """Copies the learning rates of the groups into device memory."""
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
        """All settings of the groups except the learning rate."""
        return [_settings(group, memory) for group, memory in self._both()]

    def changes(self, before: list[dict[str, Any]]) -> list[str]:
        now = self.settings()
        if now == before:
            return []
        if len(now) != len(before):
            return ["the number of an optimizer's parameter groups changed"]
        return [
            f"an optimizer's {name} was {then.get(name)!r} and is now"
            f" {group.get(name)!r}"
            for group, then in zip(now, before, strict=True)
            for name in {**then, **group}
            if then.get(name) != group.get(name)
        ]

    def _both(self) -> Iterator[tuple[Group, Tensor | None]]:
        for number, group in enumerate(self._groups()):
            has_memory = number < len(self._memory)
            yield group, self._memory[number] if has_memory else None

    def states(self) -> list[dict[Any, set[Any]]]:
        """The names of the state entries of each parameter."""
        return [
            {parameter: set(state) for parameter, state in each.state.items()}
            for each in self.optimizers
        ]

    def forget_new_states(self, before: list[dict[Any, set[Any]]]) -> bool:
        """Drops state that is not in `before`; returns whether there was any."""
        dropped = False
        for optimizer, names in zip(self.optimizers, before, strict=True):
            for parameter, state in list(optimizer.state.items()):
                for name in set(state) - names.get(parameter, set()):
                    dropped = True
                    del state[name]
                if parameter not in names:
                    del optimizer.state[parameter]
        return dropped

    def numbers(self) -> list[Any]:
        """The learning rates of the groups, which a recorded step must not change."""
        return [
            float(group["lr"]) if not isinstance(group["lr"], Tensor) else group["lr"]
            for group in self._groups()
        ]


def _memory_for(group: Group) -> Tensor | None:
    """Device memory for the learning rate; None if the optimizer needs a number."""
    if "lr" not in group or not group["params"]:
        return None
    if "capturable" not in group and not _can_be_fused(group):
        return None
    device = group["params"][0].device
    return torch.zeros((), dtype=torch.float32, device=device)


def _on_gpu(group: Group) -> bool:
    return all(parameter.is_cuda for parameter in group["params"])


def _can_be_fused(group: Group) -> bool:
    is_sgd = {"momentum", "dampening", "nesterov", "fused"} <= group.keys()
    floats = all(parameter.is_floating_point() for parameter in group["params"])
    return is_sgd and floats and _on_gpu(group)


def _counters_to_device(optimizer: Optimizer, group: Group) -> None:
    for parameter in group["params"]:
        state = optimizer.state.get(parameter)
        if state is not None and state.get("step") is not None:
            state["step"] = torch.as_tensor(
                state["step"], dtype=torch.float32, device=parameter.device
            )


def _settings(group: Group, memory: Tensor | None) -> dict[str, Any]:
    excluded = {"params", "initial_lr"}
    if memory is not None:
        excluded.add("lr")
    plain = {
        name: value
        for name, value in group.items()
        if name not in excluded and not isinstance(value, Tensor)
    }
    return plain | {"parameters": len(group["params"])}
