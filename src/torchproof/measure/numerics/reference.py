"""Computes reference outputs: eager, eager in float64, and with perturbed inputs.

Takes functions that build a target and run it. Returns a `Reference`, whose `compare`
reaches the verdict on the outputs of a strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from torchproof.measure.numerics.float64_mode import (
    Draw,
    DrawRecorder,
    NoFloat64,
    float64_computation,
    wider,
)
from torchproof.measure.numerics.swap_tensors import swapped_values
from torchproof.records import one_line
from torchproof.targets import Answers
from torchproof.torch_private import comparison

T = TypeVar("T")
# Eager runs on perturbed inputs, which are only made if an output is in doubt.
PERTURBED_RUNS = 4


@dataclass(frozen=True)
class Reference:
    """`exact` is None if there is no float64 run, and `why` says why.

    `draws` says that the target draws random numbers from torch. `unrepeatable` says
    what differs at each load of the target: then nothing can be compared with it.
    """

    eager: Answers
    exact: Answers | None
    why: str
    draws: bool
    perturbed: Callable[[], Sequence[Answers]] = tuple
    unrepeatable: str | None = None

    def compare(
        self,
        answers: Answers,
        labels: Collection[str] | None = None,
    ) -> comparison.Comparison:
        """Compares outputs with eager's; only those with these labels, if given."""
        if self.unrepeatable:
            return comparison.Comparison(None, why=self.unrepeatable)
        ours, theirs = (
            each
            if labels is None
            else {name: each[name] for name in labels if name in each}
            for each in (answers, self.eager)
        )
        return comparison.compare(ours, theirs, self.exact, perturbed=self.perturbed)


def reference(
    make: Callable[[], T],
    run: Callable[[T], Answers],
    *,
    earlier: Answers | None = None,
    no_float64: str | None = None,
) -> Reference:
    """Computes eager's outputs, and those that tell how exact they are.

    `make` builds the target, `run` runs one seeded pass over it and returns the
    outputs. Both are called several times. `earlier` are eager's outputs of another
    load of the target, if it ran already. `no_float64` says why there is no run in
    float64.
    """
    recorder = DrawRecorder()
    target = make()
    with torch.compiler.set_stance("force_eager"), recorder:
        eager = run(target)
    if earlier is None:
        with torch.compiler.set_stance("force_eager"):
            earlier = run(make())
    draws = bool(recorder.draws)
    perturbed: list[Answers] = []

    def perturb() -> Sequence[Answers]:
        if not perturbed:
            perturbed.extend(
                _perturbed(make(), run, seed) for seed in range(PERTURBED_RUNS)
            )
        return perturbed

    if differs := differs_at_each_load(earlier, eager):
        # Other inputs in float64 would excuse any error as rounding.
        return Reference(eager, None, "", draws, perturb, unrepeatable=differs)
    exact, why = (None, no_float64) if no_float64 else _exact(make, run, recorder.draws)
    return Reference(eager, exact, why, draws, perturb)


def differs_at_each_load(one: Answers, another: Answers) -> str | None:
    """What differs by more than rounding between two loads of a target, in words."""
    tensors = [value for value in one.values() if isinstance(value, torch.Tensor)]
    types = comparison.types_in_use(tensors, ())
    tolerance = comparison.tolerance_for(types, tensors, gradients=True)
    found = comparison.compare(one, another, tolerance=tolerance)
    if found.verdict != "wrong":
        return None
    inputs = {name: value for name, value in one.items() if ": argument" in name}
    given = {name: another[name] for name in inputs if name in another}
    first = comparison.compare(inputs, given, tolerance=tolerance)
    where = first.where if first.verdict == "wrong" else found.where
    return (
        f"{where} differs each time the target is loaded, in eager too: seed what the"
        " factory draws"
    )


def different_bits(outputs: Answers, expected: Answers) -> str | None:
    """The first output with a bit that differs from what is expected.

    One comparison does not show a race between kernels: it may take hundreds of replays
    until one kernel reads what another has not written yet.
    """
    if outputs.keys() != expected.keys():
        return min(outputs.keys() ^ expected.keys())
    return next(
        (name for name in expected if not _is_same(outputs[name], expected[name])), None
    )


def _is_same(value: Any, expected: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return repr(value) == repr(expected)  # NaN is not equal to itself
    alike = value.dtype == expected.dtype and value.shape == expected.shape
    return alike and torch.equal(_bits(value), _bits(expected))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.reshape(-1).view(torch.uint8)


def _exact(
    make: Callable[[], T], run: Callable[[T], Answers], draws: Sequence[Draw]
) -> tuple[Answers | None, str]:
    target = make()
    try:
        with swapped_values(target, wider), float64_computation(draws):
            return run(target), ""
    except NoFloat64 as error:
        return None, f"no float64 reference: {error}"
    except Exception as error:  # the target's code may fail with float64
        message = one_line(f"{type(error).__name__}: {error}", 200)
        return None, f"no float64 reference: {message}"


def _perturbed(target: T, run: Callable[[T], Answers], seed: int) -> Answers:
    """Runs eager with every floating-point input changed by about one rounding."""

    def perturb(values: torch.Tensor) -> torch.Tensor:
        # FP8 tensors are stored weights, which no strategy rounds once more, and one
        # rounding of theirs is an eighth of the number.
        if values.itemsize == 1:
            return values
        generator = torch.Generator(values.device).manual_seed(seed)
        parts = torch.view_as_real(values) if values.is_complex() else values
        noise = torch.empty(parts.shape, device=parts.device, dtype=torch.float64)
        noise.uniform_(-1, 1, generator=generator)
        near = (parts * (1 + noise * torch.finfo(parts.dtype).eps)).to(parts.dtype)
        # Whole numbers are counts, masks and indices: exact in every strategy.
        near = torch.where(parts == parts.round(), parts, near)
        return torch.view_as_complex(near) if values.is_complex() else near

    swapped = swapped_values(target, perturb, partly=True)
    with torch.compiler.set_stance("force_eager"), swapped:
        return run(target)
