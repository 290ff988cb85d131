"""Times eager and compiled steps in turns, to decide whether compiled code is faster.

Takes a function that makes both callables for a module, and the arguments of an example
call; returns a `SpeedTrial`. A step is one call. If gradients are enabled and outputs
require them, a step also runs the backward pass of the mean of each such output, and
leaves `.grad` unchanged. Steps run on a copy of the module. If the copy fails, or would
fill more than half of the free memory, they run on the module itself, and the trial
restores everything they change.

Eager and compiled code take turns in going first, so that a machine that slows down
slows both; `records.stats` compares them round by round.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchproof.records import JsonObject, Keywords, one_line
from torchproof.runtime.forward_state import save_state, tensors_of
from torchproof.runtime.tensors.storages import free_bytes
from torchproof.torch_private import trees

Call = Callable[..., Any]
Make = Callable[[nn.Module | None], tuple[Call, Call]]

_SHARE = 0.5  # of free memory that a copy of the module may fill
_WARM_UP = 3  # steps of each callable
_ROUND_S = 0.06  # duration of a round of one callable, which has at least one step
_FEWEST_ROUNDS = 4  # fewer give no interval
# Standard deviation of a callable's speed that comes from where its memory happens to
# lie. The process that measures also serves the calls, so its own layout cancels out.
_VARIATION = 0.008


@dataclass(frozen=True)
class SpeedTrial:
    """The gain of compiled code: 0.25 if eager takes 1.25 times as long.

    `low` and `high` are the 95 percent interval of the gain. They are None if steps
    took so long that there were too few rounds. `samples` counts the timed steps of
    each callable.
    """

    eager_ms: float
    compiled_ms: float
    gain: float
    low: float | None
    high: float | None
    samples: int
    where: Literal["copy", "in place"]
    notes: tuple[str, ...] = ()

    def pays(self, min_gain: float) -> bool:
        """Whether to run compiled code.

        The measured gain must reach the threshold, and the whole interval must be above
        0. Without an interval the model stays eager.
        """
        return self.gain >= min_gain and self.low is not None and self.low > 0

    def to_json(self) -> JsonObject:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        between = "" if self.low is None else f" ({self.low:+.1%} to {self.high:+.1%})"
        return (
            f"{self.gain:+.1%}{between}: eager {self.eager_ms:.3g} ms, compiled"
            f" {self.compiled_ms:.3g} ms, {self.samples} steps each, {self.where}"
        )


def measured(
    make: Make,
    args: tuple[Any, ...],
    kwargs: Keywords,
    *,
    owner: nn.Module | None = None,
    seconds: float = 10.0,
) -> SpeedTrial:
    """Times both callables that `make` returns for the owner, or for a copy of it.

    Sampling ends after `seconds`, or after up to twice that if a round takes long. The
    first calls, which compile, do not count. If a callable raises, the state is
    restored and the error propagates.
    """
    subject, notes = _copied(owner)
    on_copy = subject is not None and subject is not owner
    state = save_state(None if on_copy else owner, args, kwargs)
    if not on_copy:
        notes += [f"not restored: {each}" for each in state.unprotected]
    try:
        tensors = [tensor for _, tensor in tensors_of(subject, args, kwargs)]
        timer = _Timer.of(make(subject), tensors, args=args, kwargs=kwargs)
        rounds = timer.rounds(seconds, state.restore)
    finally:
        state.restore()
    return _summary(*rounds, where="copy" if on_copy else "in place", notes=notes)


def lack_of_memory(owner: nn.Module) -> str | None:
    """Why a second copy of a module would not fit into memory, or None."""
    sizes: dict[torch.device, int] = {}
    for tensor in {id(t): t for _, t in tensors_of(owner, (), {})}.values():
        lazy = nn.parameter.is_lazy(tensor)
        size = 0 if lazy else tensor.numel() * tensor.itemsize
        sizes[tensor.device] = sizes.get(tensor.device, 0) + size
    for device, size in sizes.items():
        if device.type != "meta" and size > _SHARE * free_bytes(device):
            needed = f"{size / 1e9:.3g} GB on {device}"
            return f"a copy needs {needed}, more than half of the free memory"
    return None


def _copied(owner: nn.Module | None) -> tuple[nn.Module | None, list[str]]:
    """A copy of the module, or the module itself and the reason."""
    if owner is None:
        return None, []
    if lack := lack_of_memory(owner):
        return owner, [f"no copy: {lack}"]
    try:
        return copy.deepcopy(owner), []
    except Exception as error:
        why = one_line(f"{type(error).__name__}: {error}", 200)
        return owner, [f"no copy: {why}"]


@dataclass(frozen=True)
class _Timer:
    """Runs and times steps of two callables, in the order eager, compiled."""

    calls: tuple[Call, Call]
    args: tuple[Any, ...]
    kwargs: Keywords
    differentiable: list[Tensor]
    devices: set[torch.device]

    @classmethod
    def of(
        cls,
        calls: tuple[Call, Call],
        tensors: list[Tensor],
        *,
        args: tuple[Any, ...],
        kwargs: Keywords,
    ) -> _Timer:
        """`tensors` are all tensors that the call can reach."""
        differentiable = {id(t): t for t in tensors if t.requires_grad}
        return cls(
            calls=calls,
            args=args,
            kwargs=dict(kwargs),
            differentiable=[*differentiable.values()],
            devices={tensor.device for tensor in tensors if tensor.is_cuda},
        )

    def rounds(
        self, seconds: float, reset: Callable[[], object]
    ) -> tuple[list[list[float]], list[list[float]]]:
        """The milliseconds of each step, by round, of eager and of compiled code."""
        for call in self.calls:
            for _ in range(_WARM_UP):
                self._step_ms(call)
            reset()
        rounds_ms: tuple[list[list[float]], list[list[float]]] = ([], [])
        begin = time.monotonic()
        number = 0
        while not _over(time.monotonic() - begin, seconds, number):
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                rounds_ms[which].append(self._round(self.calls[which]))
                reset()
            number += 1
        return rounds_ms

    def _round(self, call: Call) -> list[float]:
        steps_ms: list[float] = []
        begin = time.monotonic()
        self._step_ms(call)  # refills the caches that the other callable evicted
        while not steps_ms or time.monotonic() - begin < _ROUND_S:
            steps_ms.append(self._step_ms(call))
        return steps_ms

    def _step_ms(self, call: Call) -> float:
        self._synchronise()
        begin = time.perf_counter()
        output = call(*self.args, **self.kwargs)
        self._backward(output)
        self._synchronise()
        return (time.perf_counter() - begin) * 1e3

    def _backward(self, output: Any) -> None:
        means = [
            part.mean()
            for part in trees.tensors(output, objects=True)
            if part.requires_grad
        ]
        if means and self.differentiable:
            # `grad` returns gradients of inputs and weights and leaves `.grad` alone.
            ones = [torch.ones_like(mean) for mean in means]
            torch.autograd.grad(means, self.differentiable, ones, allow_unused=True)

    def _synchronise(self) -> None:
        for device in self.devices:
            torch.cuda.synchronize(device)


def _over(elapsed_s: float, seconds: float, rounds: int) -> bool:
    if rounds < _FEWEST_ROUNDS:
        return rounds > 0 and elapsed_s > 2 * seconds
    return elapsed_s > seconds


def _summary(
    eager: list[list[float]],
    compiled: list[list[float]],
    *,
    where: Literal["copy", "in place"],
    notes: list[str],
) -> SpeedTrial:
    from torchproof.records import stats

    eager_times, compiled_times = stats.summarise(eager), stats.summarise(compiled)
    ratio = stats.compare(eager, compiled, variation=_VARIATION)
    return SpeedTrial(
        eager_ms=eager_times.median,
        compiled_ms=compiled_times.median,
        gain=ratio.value - 1,
        low=None if ratio.low is None else ratio.low - 1,
        high=None if ratio.high is None else ratio.high - 1,
        samples=min(eager_times.count, compiled_times.count),
        where=where,
        notes=tuple(notes),
    )
