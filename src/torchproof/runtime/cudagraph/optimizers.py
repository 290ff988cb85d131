"""Prepares optimizers for recorded steps, and watches their settings.

A recorded `optimizer.step()` must not read from the host. So step counters are on the
device (`capturable`), and the learning rate is read from device memory, which gets the
scheduler's current value before each replay. `param_groups` keep the numbers that users
and schedulers set. All other settings are part of the recording (`recorded_settings`):
if one changes, the step is recorded again.
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

    def __init__(self, notes: list[str]) -> None:
        self.optimizers: list[Optimizer] = []
        self._notes = notes  # a note is added for each change of an optimizer
        self._groups: list[Group] = []
        self._memory: list[Tensor | None] = []
        self._written: list[float | None] = []

    def add(self, optimizers: Sequence[Optimizer]) -> bool:
        """Makes these optimizers capturable; returns whether one of them is new."""
        present = {id(each) for each in self.optimizers}
        new = [each for each in optimizers if id(each) not in present]
        for optimizer in new:
            changed = False
            for group in optimizer.param_groups:
                if group.get("capturable") is False and _on_gpu(group):
                    group["capturable"] = changed = True
                    _counters_to_device(optimizer, group)
            if changed:
                name = type(optimizer).__name__
                self._notes.append(
                    f"{name}: set capturable=True and moved its step counters to the"
                    " device"
                )
                # Otherwise it warns at every step outside of a capture.
                optimizer._warned_capturable_if_run_uncaptured = True
            if any(map(_can_be_fused, optimizer.param_groups)):
                # `in_memory` runs it fused, and a fused step would set this at its
                # first run: a change of state, which only a recording makes.
                optimizer._need_device_dtype_check_for_fused = False  # type: ignore[attr-defined]
            self.optimizers.append(optimizer)
            for group in optimizer.param_groups:
                self._add_group(group)
        return bool(new)

    def _add_group(self, group: Group) -> None:
        """Adds a group once: an optimizer that wraps another one has its groups."""
        if not any(group is each for each in self._groups):
            self._groups.append(group)
            self._memory.append(_memory_for(group))
            self._written.append(None)

    @contextlib.contextmanager
    def in_memory(self) -> Iterator[None]:
        """Within this, the optimizers read their learning rates from device memory."""
        originals = []
        self.write()
        for group, memory in zip(self._groups, self._memory, strict=True):
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
            zip(self._groups, self._memory, strict=True)
        ):
            rate: Any = group.get("lr")
            if memory is None or rate is memory:
                continue
            if isinstance(rate, Tensor):
                memory.copy_(rate, non_blocking=True)
            elif rate != self._written[number]:
                memory.fill_(rate)
                self._written[number] = rate

    def numbers(self) -> list[Any]:
        """The learning rates of the groups, which a recorded step must not change."""
        return [group.get("lr") for group in self._groups]


def recorded_settings(group: Group) -> list[str]:
    """The names of the settings that are part of a recording."""
    excluded = {"initial_lr"}
    if _is_mirrored(group):
        excluded.add("lr")
    return [name for name in group if name not in excluded]


def _memory_for(group: Group) -> Tensor | None:
    """Device memory for the learning rate; None if the optimizer needs a number."""
    if not _is_mirrored(group):
        return None
    device = group["params"][0].device
    return torch.zeros((), dtype=torch.float32, device=device)


def _is_mirrored(group: Group) -> bool:
    """Whether the optimizer can read its learning rate from device memory."""
    return (
        "lr" in group
        and bool(group["params"])
        and ("capturable" in group or _can_be_fused(group))
    )


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
