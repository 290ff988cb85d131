"""One answer against eager's and an exact one: the arithmetic of the verdict.

Comes in: the same tensor from the arm, from eager, from float64, and where needed from
eager runs whose inputs were nudged by a rounding. Goes out: an `Agreement`.

No element may be further from the exact value than eager's own errors excuse. These are
looked up among elements of like size, so that neither a few huge elements excuse wrong
small ones, nor does an element on which eager was lucky count as wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Verdict = Literal["same", "rounding", "wrong"]

# As far from eager as a few operations in another order get, in epsilons of the type.
FEW_ROUNDINGS = 4
# How many times eager's own largest error is excused.
EXCUSE = 8
# Eager's largest error is known only from this many samples on.
ENOUGH_SAMPLES = 16
# Where nothing tells eager's error: epsilons of the element and of the typical one.
# Short types are summed up in longer ones, so that fewer of their roundings add up.
MANY_ROUNDINGS, MANY_SHORT_ROUNDINGS = 64, 8


@dataclass(frozen=True)
class Agreement:
    """How one answer compares; errors are relative to the largest exact element.

    `excess` is the worst error in units of what is excused. `final`: no further run of
    eager could excuse it.
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
    given: Tensor, eager: Tensor, exact: Tensor | None, nudged: Sequence[Tensor] = ()
) -> Agreement:
    """Compares tensors of one type and shape; `exact` and `nudged` are of that shape.

    Without `exact`, eager stands in for it.
    """
    if not eager.is_floating_point() and not eager.is_complex():
        return _agree_discrete(given, eager, exact, nudged)
    kind = torch.finfo(eager.dtype)
    e = _doubles(eager)
    x = _doubles(exact) if exact is not None and kind.bits < 64 else e
    if bool((x.isnan() & ~e.isnan()).any()):  # what float64 shows is another program
        x = e
    return _agree_floats(
        _Seen(_doubles(given), e, x, tuple(map(_doubles, nudged))), kind
    )


@dataclass(frozen=True)
class _Seen:
    """The same numbers from everyone, in float64 and flat."""

    given: Tensor
    eager: Tensor
    exact: Tensor
    nudged: tuple[Tensor, ...]

    @property
    def reference(self) -> Literal["float64", "eager"]:
        return "eager" if self.exact is self.eager else "float64"

    def example(self, weight: Tensor) -> str:
        """The element with the largest weight, as everyone has it."""
        at = int(weight.argmax())
        told = f"element {at} is {self.given[at]:.6g}, eager gives {self.eager[at]:.6g}"
        if self.reference == "float64":
            told += f", float64 {self.exact[at]:.6g}"
        return told


def _agree_floats(seen: _Seen, kind: torch.finfo) -> Agreement:
    a, e, x = seen.given, seen.eager, seen.exact
    lost = a.isnan() & ~e.isnan()
    if bool(lost.any()):
        return wrong(f"NaN where eager has none, in {_share(lost)}")
    infinite = _unexcused_infinities(seen, kind)
    if bool(infinite.any()):
        told = seen.example(infinite.int())
        return wrong(f"infinity on one side only, in {_share(infinite)}: {told}")
    samples = [s for s in (e, *seen.nudged) if s is not x]
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
        why = f"{_share(excess > 1)} too far off: {seen.example(excess)}"
    elif bool(e.isnan().any()):
        verdict, why = None, f"eager itself gives NaN, in {_share(e.isnan())}"
    scale = _largest(x)
    return Agreement(
        verdict,
        error=_relative(_largest(error), scale),
        eager_error=None if x is e else _relative(_largest(_distance(e, x)), scale),
        reference=seen.reference,
        why=why,
        excess=worst,
    )


def _unexcused_infinities(seen: _Seen, kind: torch.finfo) -> Tensor:
    """Where only one side is infinite.

    float64 excuses an infinity where the exact value does not fit into the type, and a
    finite value where eager overflowed on the way (that value is then compared).
    """
    a, e, x = seen.given, seen.eager, seen.exact
    differ = (a != e) & (a.isinf() | e.isinf()) & ~e.isnan()
    if seen.reference == "eager":
        return differ
    overflows = (x.abs() >= kind.max * (1 - FEW_ROUNDINGS * kind.eps)) & (a * x > 0)
    return differ & ~torch.where(a.isinf(), overflows, x.isfinite())


def _allowed(x: Tensor, noise: Tensor, *, samples: int, kind: torch.finfo) -> Tensor:
    """How far each element may be off: eager's errors, times what is excused."""
    size = torch.where(x.isfinite(), x.abs(), 0.0)
    few = FEW_ROUNDINGS * kind.eps * size + kind.tiny
    many = (MANY_ROUNDINGS if kind.bits > 16 else MANY_SHORT_ROUNDINGS) * kind.eps
    if not samples:
        return few + many * (size + size.square().mean().sqrt())
    if not size.numel():
        return few
    if samples * size.numel() < ENOUGH_SAMPLES:
        few += many * size
    # Both bound each of eager's errors: its largest one at this size, and the largest
    # one relative to the element. A zero is what a kink or a mask cut off.
    peak = _peaks(size, noise, samples)
    share = torch.where(noise > 0, noise / size, 0.0).amax()
    relative = torch.where(size > 0, share * size, math.inf)
    return few + EXCUSE * torch.minimum(peak, relative)


def _peaks(size: Tensor, noise: Tensor, samples: int) -> Tensor:
    """For each element the largest noise among elements of at most about its size.

    Elements are sorted into bins by the exponent of their size, zeros below all.
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
    given: Tensor, eager: Tensor, exact: Tensor | None, nudged: Sequence[Tensor]
) -> Agreement:
    """Integers and truth values: as often off as eager is, where it hangs on rounding.

    Such are positions of a largest element, comparisons and rounded values.
    """
    if torch.equal(given, eager):
        return Agreement("same", 0.0, 0.0 if exact is not None else None)
    x = eager if exact is None else exact
    reference: Literal["float64", "eager"] = "eager" if exact is None else "float64"
    unsteady = torch.zeros_like(x, dtype=torch.bool)
    for sample in (eager, *nudged):
        unsteady |= sample != x
    off = (given != x) & (given != eager)
    stray = off & ~unsteady
    excess = int(stray.sum()) / max(int(unsteady.sum()), 0.5)
    if excess <= 1:
        return Agreement("rounding", reference=reference, excess=excess)
    at = int(stray.flatten().int().argmax())
    told = f"element {at} is {given.flatten()[at]}, eager gives {eager.flatten()[at]}"
    why = f"{_share(off)} differ: {told}"
    return Agreement("wrong", reference=reference, why=why, excess=excess)


# -- numbers ---------------------------------------------------------------------------


def _doubles(values: Tensor) -> Tensor:
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj().to(torch.complex128))
    return values.to(torch.float64).flatten()


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Where either is no finite number: none, that is judged by itself."""
    apart = (one - other).abs()
    return torch.where(apart.isfinite(), apart, 0.0)


def _largest(values: Tensor) -> float:
    finite = torch.where(values.isfinite(), values.abs(), 0.0)
    return float(finite.amax()) if finite.numel() else 0.0


def _relative(error: float, scale: float) -> float | None:
    if scale:
        return error / scale
    return None if error else 0.0


def _share(where: Tensor) -> str:
    return f"{int(where.sum())} of {where.numel()} elements"
