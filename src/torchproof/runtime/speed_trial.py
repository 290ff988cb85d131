"""Whether compiled code is worth it: eager and compiled steps timed in turns.

In comes a function that makes both callables for a module, and an example call. Out
goes a `Worth`. A step is a call, and where gradients are enabled and outputs require
them, also the backward pass of the mean of the floating outputs, with `.grad`
untouched. Steps run on a copy of the module; in place where a copy cannot be made or
would fill more than half of the free memory, with all that they change put back.

The arms take turns in going first, so that a machine that gets slower meanwhile slows
down both; `samples` compares them round by round.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchproof.records import one_line
from torchproof.runtime.forward_state import saved, tensors_of
from torchproof.runtime.tensors.storages import free_bytes
from torchproof.runtime.tensors.tree import walk

Call = Callable[..., Any]
Make = Callable[[nn.Module | None], tuple[Call, Call]]

_SHARE = 0.5  # of free memory that a copy of the module may fill
_WARM_UP = 3  # steps of each arm
_ROUND_S = 0.06  # what a round lasts for one arm, at least one step
_FEWEST_ROUNDS = 4  # fewer give no interval
# Standard deviation of an arm's speed by where its memory happens to lie. It is the
# process measured in that goes on with either arm, so that its own luck does not count.
_LUCK = 0.008


@dataclass(frozen=True)
class Worth:
    """What compiling gains: 0.25 when eager takes 1.25 times as long.

    `low` and `high` are the 95 percent interval of the gain; None where a step takes so
    long that there were too few rounds. `samples`: steps timed of each arm.
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
        """Whether to run compiled code: it gains the minimum, and surely gains.

        The measured gain has to reach the threshold, and the whole interval has to be
        above 0. Without an interval nothing is sure, and eager is kept.
        """
        return self.gain >= min_gain and self.low is not None and self.low > 0

    def to_json(self) -> dict[str, Any]:
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
    kwargs: Mapping[str, Any],
    *,
    owner: nn.Module | None = None,
    seconds: float = 10.0,
) -> Worth:
    """Times both callables that `make` gives for the owner, or for a copy of it.

    Sampling ends after `seconds`, or up to twice that where a round takes long; the
    first calls, which compile, are not counted in. What either callable raises is
    raised, with everything put back.
    """
    subject, notes = _copied(owner)
    on_copy = subject is not None and subject is not owner
    state = saved(None if on_copy else owner, args, kwargs)
    if not on_copy:
        notes += [f"not protected: {each}" for each in state.unprotected]
    try:
        held = [tensor for _, tensor in tensors_of(subject, args, kwargs)]
        arms = _Arms.of(make(subject), held, args, kwargs)
        rounds = arms.rounds(seconds, state.restore)
    finally:
        state.restore()
    return _worth(*rounds, where="copy" if on_copy else "in place", notes=notes)


def lack_of_memory(owner: nn.Module) -> str | None:
    """Why a second one would not fit beside a module, in words."""
    sizes: dict[torch.device, int] = {}
    for tensor in {id(t): t for _, t in tensors_of(owner, (), {})}.values():
        lazy = nn.parameter.is_lazy(tensor)
        size = 0 if lazy else tensor.numel() * tensor.itemsize
        sizes[tensor.device] = sizes.get(tensor.device, 0) + size
    for device, size in sizes.items():
        if device.type != "meta" and size > _SHARE * free_bytes(device):
            taken = f"{size / 1e9:.3g} GB on {device}"
            return f"it takes {taken}, more than half of what is free"
    return None


def _copied(owner: nn.Module | None) -> tuple[nn.Module | None, list[str]]:
    """A copy of the module, or itself with the reason."""
    if owner is None:
        return None, []
    if lack := lack_of_memory(owner):
        return owner, [f"no copy: {lack}"]
    try:
        return copy.deepcopy(owner), []
    except Exception as error:
        told = one_line(f"{type(error).__name__}: {error}", 200)
        return owner, [f"no copy: {told}"]


@dataclass(frozen=True)
class _Arms:
    """The two callables in the order eager, compiled, and how a step of them runs."""

    calls: tuple[Call, Call]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    differentiable: list[Tensor]
    devices: set[torch.device]

    @classmethod
    def of(cls, calls: tuple[Call, Call], held: list[Tensor], *call: Any) -> _Arms:
        """`held`: every tensor in reach of the call, which is (args, kwargs)."""
        args, kwargs = call
        wanted = {id(t): t for t in held if t.requires_grad}
        devices = {tensor.device for tensor in held if tensor.is_cuda}
        return cls(calls, args, dict(kwargs), [*wanted.values()], devices)

    def rounds(
        self, seconds: float, reset: Callable[[], object]
    ) -> tuple[list[list[float]], list[list[float]]]:
        """Milliseconds of each step, by round, of eager and of compiled code."""
        for call in self.calls:
            for _ in range(_WARM_UP):
                self._step_ms(call)
            reset()
        taken: tuple[list[list[float]], list[list[float]]] = ([], [])
        begin, number = time.monotonic(), 0
        while not _over(time.monotonic() - begin, seconds, number):
            for arm in (0, 1) if number % 2 == 0 else (1, 0):
                taken[arm].append(self._round(self.calls[arm]))
                reset()
            number += 1
        return taken

    def _round(self, call: Call) -> list[float]:
        found: list[float] = []
        begin = time.monotonic()
        self._step_ms(call)  # what the other arm has put out of the caches
        while not found or time.monotonic() - begin < _ROUND_S:
            found.append(self._step_ms(call))
        return found

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
            for _, part in walk(output, "")
            if isinstance(part, Tensor) and part.requires_grad
        ]
        if means and self.differentiable:
            # With regard to inputs and weights, which leaves `.grad` as it is.
            ones = [torch.ones_like(mean) for mean in means]
            torch.autograd.grad(means, self.differentiable, ones, allow_unused=True)

    def _synchronise(self) -> None:
        for device in self.devices:
            torch.cuda.synchronize(device)


def _over(elapsed_s: float, seconds: float, rounds: int) -> bool:
    if rounds < _FEWEST_ROUNDS:
        return rounds > 0 and elapsed_s > 2 * seconds
    return elapsed_s > seconds


def _worth(
    eager: list[list[float]],
    compiled: list[list[float]],
    *,
    where: Literal["copy", "in place"],
    notes: list[str],
) -> Worth:
    from torchproof.records import stats as samples

    spreads = [samples.summarise(rounds) for rounds in (eager, compiled)]
    ratio = samples.compare(eager, compiled, luck=_LUCK)
    return Worth(
        spreads[0].median,
        spreads[1].median,
        ratio.value - 1,
        None if ratio.low is None else ratio.low - 1,
        None if ratio.high is None else ratio.high - 1,
        min(spread.count for spread in spreads),
        where,
        tuple(notes),
    )
