"""Compares one output with eager's and with an exact one.

Takes the same tensor from the strategy, from eager, from float64, and if needed from
eager runs with perturbed inputs. Returns an `Agreement`.

No element may be further from the exact value than eager's own errors allow. The error
of an element is compared with eager's errors on elements of similar size. So a few huge
elements do not excuse wrong small ones, and an element that eager happens to get exact
does not count as wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Verdict = Literal["same", "rounding", "wrong"]

# The distance from eager after a few reordered operations, in epsilons of the dtype.
FEW_ROUNDINGS = 4
# The allowed error, as a multiple of eager's own largest error.
EXCUSE = 8
# The number of samples from which eager's largest error is reliable.
ENOUGH_SAMPLES = 16
# If eager's error is unknown: epsilons of the element and of the typical element.
# Kernels accumulate short dtypes in longer ones, so fewer roundings add up.
MANY_ROUNDINGS, MANY_SHORT_ROUNDINGS = 64, 8


@dataclass(frozen=True)
class Agreement:
    """The comparison of one output; errors are relative to the largest exact element.

    `excess` is the worst error relative to the allowed one. `final` says that no
    further run of eager could excuse it.
    """

    verdict: Verdict | None
    error: float | None = None
    eager_error: float | None = None
    reference: Literal["float64", "eager"] = "eager"
    why: str = ""
    excess: float = 0.0
    final: bool = False


def wrong(why: str) -> Agreement:
    return Agreement("wrong", why=why, excess=math.inf, final=True)


def agree(
    output: Tensor,
    eager: Tensor,
    exact: Tensor | None,
    perturbed: Sequence[Tensor] = (),
) -> Agreement:
    """Compares tensors of one dtype and shape; `exact` and `perturbed` have that shape.

    Without `exact`, eager takes its place.
    """
    if not eager.is_floating_point() and not eager.is_complex():
        return _agree_discrete(output, eager, exact, perturbed)
    kind = torch.finfo(eager.dtype)
    e = _doubles(eager)
    x = _doubles(exact) if exact is not None and kind.bits < 64 else e
    if bool((x.isnan() & ~e.isnan()).any()):  # the float64 run took another path
        x = e
    return _agree_floats(
        _Values(_doubles(output), e, x, tuple(map(_doubles, perturbed))), kind
    )


@dataclass(frozen=True)
class _Values:
    """The same tensor from each source, flat and in float64."""

    output: Tensor
    eager: Tensor
    exact: Tensor
    perturbed: tuple[Tensor, ...]

    @property
    def reference(self) -> Literal["float64", "eager"]:
        return "eager" if self.exact is self.eager else "float64"

    def example(self, weight: Tensor) -> str:
        """Returns the element with the largest weight, as each source has it."""
        at = int(weight.argmax())
        text = (
            f"element {at} is {self.output[at]:.6g}, eager gives {self.eager[at]:.6g}"
        )
        if self.reference == "float64":
            text += f", float64 {self.exact[at]:.6g}"
        return text


def _agree_floats(values: _Values, kind: torch.finfo) -> Agreement:
    a, e, x = values.output, values.eager, values.exact
    unexpected = a.isnan() & ~e.isnan()
    if bool(unexpected.any()):
        return wrong(f"NaN where eager has none, in {_share(unexpected)}")
    infinite = _unexcused_infinities(values, kind)
    if bool(infinite.any()):
        example = values.example(infinite.int())
        return wrong(f"infinity on one side only, in {_share(infinite)}: {example}")
    samples = [s for s in (e, *values.perturbed) if s is not x]
    noise = torch.zeros_like(x)
    for sample in samples:
        noise = torch.maximum(noise, _distance(sample, x))
    error = torch.where(e.isnan(), 0.0, _distance(a, x))
    few = FEW_ROUNDINGS * kind.eps * e.abs() + kind.tiny
    close = (a == e) | (a.isfinite() & e.isfinite() & (_distance(a, e) <= few))
    allowed = _allowed(x, noise, samples=len(samples), kind=kind)
    excess = torch.where(close, 0.0, error / allowed)
    worst = float(excess.amax()) if excess.numel() else 0.0
    verdict: Verdict | None = "same" if bool((close | e.isnan()).all()) else "rounding"
    why = ""
    if worst > 1:
        verdict = "wrong"
        why = f"{_share(excess > 1)} too far off: {values.example(excess)}"
    elif bool(e.isnan().any()):
        verdict, why = None, f"eager itself gives NaN, in {_share(e.isnan())}"
    scale = _largest(x)
    return Agreement(
        verdict,
        error=_relative(_largest(error), scale),
        eager_error=None if x is e else _relative(_largest(_distance(e, x)), scale),
        reference=values.reference,
        why=why,
        excess=worst,
    )


def _unexcused_infinities(values: _Values, kind: torch.finfo) -> Tensor:
    """Returns where only one side is infinite.

    float64 excuses an infinity if the exact value does not fit into the dtype, and a
    finite value if eager overflowed on the way (that value is then compared).
    """
    a, e, x = values.output, values.eager, values.exact
    differ = (a != e) & (a.isinf() | e.isinf()) & ~e.isnan()
    if values.reference == "eager":
        return differ
    overflows = (x.abs() >= kind.max * (1 - FEW_ROUNDINGS * kind.eps)) & (a * x > 0)
    return differ & ~torch.where(a.isinf(), overflows, x.isfinite())


def _allowed(x: Tensor, noise: Tensor, *, samples: int, kind: torch.finfo) -> Tensor:
    """Returns the allowed error of each element, from eager's errors."""
    size = torch.where(x.isfinite(), x.abs(), 0.0)
    few = FEW_ROUNDINGS * kind.eps * size + kind.tiny
    many = (MANY_ROUNDINGS if kind.bits > 16 else MANY_SHORT_ROUNDINGS) * kind.eps
    if not samples:
        return few + many * (size + size.square().mean().sqrt())
    if not size.numel():
        return few
    if samples * size.numel() < ENOUGH_SAMPLES:
        few += many * size
    # Two bounds on eager's error hold: its largest error at this size, and its largest
    # relative error. Zeros come from masks and from functions such as ReLU.
    peak = _peaks(size, noise, samples)
    share = torch.where(noise > 0, noise / size, 0.0).amax()
    relative = torch.where(size > 0, share * size, math.inf)
    return few + EXCUSE * torch.minimum(peak, relative)


def _peaks(size: Tensor, noise: Tensor, samples: int) -> Tensor:
    """Returns for each element the largest noise of elements up to its size.

    Elements are put into bins by the exponent of their size, zeros into the lowest.
    """
    exponent = torch.frexp(size).exponent.long()
    zero = size == 0
    lowest = exponent.amin() - 1
    bins = torch.where(zero, 0, exponent - lowest)
    count = torch.bincount(bins).cumsum(0)
    peak = torch.zeros(len(count), dtype=noise.dtype, device=noise.device)
    peak = peak.scatter_reduce_(0, bins, noise, "amax").cummax(0).values
    last = len(count) - 1
    enough = torch.searchsorted(count, math.ceil(ENOUGH_SAMPLES / samples))
    middle = torch.searchsorted(count, int(zero.sum()) + (~zero).sum() // 2 + 1)
    reach = torch.where(zero, middle, bins + 1)
    return peak[torch.maximum(reach, enough).clamp(max=last)]


def _agree_discrete(
    output: Tensor, eager: Tensor, exact: Tensor | None, perturbed: Sequence[Tensor]
) -> Agreement:
    """Compares integers and booleans; they may differ as often as eager's do.

    Rounding changes results such as argmax, comparisons and rounded values.
    """
    if torch.equal(output, eager):
        return Agreement("same", 0.0, 0.0 if exact is not None else None)
    x = eager if exact is None else exact
    reference: Literal["float64", "eager"] = "eager" if exact is None else "float64"
    unsteady = torch.zeros_like(x, dtype=torch.bool)
    for sample in (eager, *perturbed):
        unsteady |= sample != x
    off = (output != x) & (output != eager)
    stray = off & ~unsteady
    excess = int(stray.sum()) / max(int(unsteady.sum()), 0.5)
    if excess <= 1:
        return Agreement("rounding", reference=reference, excess=excess)
    at = int(stray.flatten().int().argmax())
    example = (
        f"element {at} is {output.flatten()[at]}, eager gives {eager.flatten()[at]}"
    )
    why = f"{_share(off)} differ: {example}"
    return Agreement("wrong", reference=reference, why=why, excess=excess)


# -- numbers ---------------------------------------------------------------------------


def _doubles(values: Tensor) -> Tensor:
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj().to(torch.complex128))
    return values.to(torch.float64).flatten()


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Returns the distances; 0 for infinities and NaN, which are judged separately."""
    difference = (one - other).abs()
    return torch.where(difference.isfinite(), difference, 0.0)


def _largest(values: Tensor) -> float:
    finite = torch.where(values.isfinite(), values.abs(), 0.0)
    return float(finite.amax()) if finite.numel() else 0.0


def _relative(error: float, scale: float) -> float | None:
    if scale:
        return error / scale
    return None if error else 0.0


def _share(where: Tensor) -> str:
    return f"{int(where.sum())} of {where.numel()} elements"
