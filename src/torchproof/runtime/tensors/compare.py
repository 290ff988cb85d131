"""Compares values of compiled code with eager's: same, off by rounding, or wrong.

Takes two values of any structure, or two dicts of tensors, and an allowance; returns a
`ValueComparison`. Structure, types, shapes, integers, booleans and text must be equal.
NaN and infinities must be in the same places. Other numbers must be within the
tolerance of the shortest floating-point type that took part in computing them,
`TOLERANCES`:

    type       each element   as a whole      gradients: element, whole
    float64    1e-8           1e-9            1e-7    1e-8
    float32    3e-4           2e-4            3e-3    2e-3
    float16    0.016          0.008           0.06    0.03     (TF32 likewise)
    bfloat16   0.125          0.06            0.5     0.25
    float8     0.5            0.25            1       0.5

"Each element": no element may differ by more than this times the sum of its size and
the root mean square of its tensor. "As a whole": the norm of the difference divided by
the norm of eager's tensor. Numbers that cancel to zero, such as the gradient of a bias
before a batch norm, consist of rounding only. For them the allowance adds a few
epsilons of the largest number among all outputs, or among all gradients.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from torchproof.torch_private import trees

Verdict = Literal["same", "rounding", "wrong"]

_TF32 = torch.float16  # has as many mantissa bits
# (element, whole, element of gradients, whole of gradients)
TOLERANCES: dict[torch.dtype, tuple[float, float, float, float]] = {
    torch.float64: (1e-8, 1e-9, 1e-7, 1e-8),
    torch.float32: (3e-4, 2e-4, 3e-3, 2e-3),
    torch.float16: (0.016, 0.008, 0.06, 0.03),
    torch.bfloat16: (0.125, 0.06, 0.5, 0.25),
    torch.float8_e4m3fn: (0.5, 0.25, 1.0, 0.5),
}
_FEW_ROUNDINGS = 4  # epsilons within which numbers count as the same
_CANCELLED, _CANCELLED_SHORT = 64, 4  # epsilons of the largest of all gradients
_CHUNK = 1 << 22  # elements compared at a time, in float64
_EXACT = (bool, int, str, bytes, type(None), torch.dtype, torch.device)
_SIMPLE = (float, complex, *_EXACT)


@dataclass(frozen=True)
class ValueComparison:
    """The result of a comparison; `error` is relative to the largest element."""

    verdict: Verdict
    error: float | None = None
    where: str | None = None
    why: str = ""


@dataclass(frozen=True)
class Allowance:
    """The tolerated difference per element and as a whole, with a floor for both."""

    type: torch.dtype
    element: float
    whole: float
    floor: float = 0.0


def allowance(
    types: Iterable[torch.dtype], values: Iterable[Tensor], *, gradients: bool = False
) -> Allowance:
    """The allowance for values computed in these types; `values` are all of eager's."""
    kind = _shortest(types)
    element, whole, *for_gradients = TOLERANCES[kind]
    if gradients:
        element, whole = for_gradients
    epsilon = torch.finfo(kind).eps
    roundings = _FEW_ROUNDINGS
    if gradients:
        roundings = _CANCELLED if torch.finfo(kind).bits > 16 else _CANCELLED_SHORT
    largest = max((_size(each)[1] for each in values if _has_digits(each)), default=0.0)
    return Allowance(kind, element, whole, roundings * epsilon * largest)


def types_in_use(
    tensors: Collection[Tensor], weights: Collection[Tensor]
) -> set[torch.dtype]:
    """The floating-point types of tensors, and those torch computes in instead.

    `weights` are the tensors that may be weights of convolutions.
    """
    types = {_real(each.dtype) for each in tensors if _has_digits(each)}
    for device in {each.device.type for each in tensors} - {"meta"}:
        if torch.is_autocast_enabled(device):
            types.add(torch.get_autocast_dtype(device))
    if torch.float32 in types:
        cuda = any(each.is_cuda for each in tensors)
        types |= _types_of_products(cuda, any(each.dim() >= 3 for each in weights))
    return types


def _types_of_products(cuda: bool, convolutions: bool) -> set[torch.dtype]:
    """The types that torch may round float32 to before it multiplies."""
    types = {"tf32": _TF32, "bf16": torch.bfloat16}
    backends: Any = torch.backends  # the stubs lack `fp32_precision`
    if not cuda:
        settings = [backends.mkldnn.matmul.fp32_precision] if _mkldnn() else []
    else:
        settings = [backends.cuda.matmul.fp32_precision]
        if convolutions:  # weights of a convolution have three dimensions or more
            settings.append(backends.cudnn.conv.fp32_precision)
    return {types[each] for each in settings if each in types}


def _mkldnn() -> bool:
    return bool(torch.backends.mkldnn.is_available())


def _shortest(types: Iterable[torch.dtype]) -> torch.dtype:
    listed = [t if t in TOLERANCES else _stand_in(t) for t in map(_real, types)]
    return max(listed, key=lambda t: torch.finfo(t).eps, default=torch.float32)


def _stand_in(kind: torch.dtype) -> torch.dtype:
    return torch.float8_e4m3fn if torch.finfo(kind).bits <= 8 else torch.float32


def _real(kind: torch.dtype) -> torch.dtype:
    return kind.to_real() if kind.is_complex else kind


def _has_digits(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


# -- structures ------------------------------------------------------------------------


def parts_of(value: Any, label: str) -> dict[str, Any]:
    """The parts of a value by label: detached tensors, plain values, container types.

    The result keeps alive only what is compared.
    """
    parts: dict[str, Any] = {}
    for name, part in trees.walk(value, label, objects=True):
        if isinstance(part, Tensor):
            parts[name] = part.detach()
        else:
            parts[name] = part if isinstance(part, _SIMPLE) else type(part)
    return parts


def compare_parts(
    compiled: Mapping[str, Any], eager: Mapping[str, Any], allowed: Allowance | None
) -> ValueComparison:
    """Compares the parts that have the same label; returns the worst comparison.

    Without an allowance it compares types, shapes and labels only.
    """
    worst = ValueComparison("same", 0.0)
    for label in {**eager, **compiled}:
        if label not in compiled or label not in eager:
            whose = "only eager has it" if label in eager else "eager does not have it"
            return ValueComparison("wrong", None, label, whose)
        for one in _compare_part(compiled[label], eager[label], allowed):
            if one.verdict == "wrong":
                return ValueComparison("wrong", one.error, label, one.why)
            if _rank(one) > _rank(worst):
                worst = ValueComparison(one.verdict, one.error, label)
    return worst


def _rank(one: ValueComparison) -> tuple[bool, float]:
    return one.verdict == "rounding", one.error or 0.0


def _compare_part(
    compiled: Any, eager: Any, allowed: Allowance | None
) -> Iterator[ValueComparison]:
    if (difference := _different_form(compiled, eager)) is not None:
        yield ValueComparison("wrong", None, None, difference)
    elif isinstance(eager, Tensor):
        if allowed is None or eager.device.type == "meta":
            return
        pairs = zip(
            trees.plain_tensors(compiled), trees.plain_tensors(eager), strict=True
        )
        yield from (_compare_tensors(one, other, allowed) for one, other in pairs)
    elif isinstance(eager, float | complex):
        if allowed is not None:
            numbers = [torch.tensor(v, device="cpu") for v in (compiled, eager)]
            yield _compare_tensors(numbers[0], numbers[1], allowed)
    elif isinstance(eager, _EXACT) and compiled != eager and allowed is not None:
        why = f"it is {compiled!r}, eager gives {eager!r}"
        yield ValueComparison("wrong", None, None, why)


def _different_form(compiled: Any, eager: Any) -> str | None:
    if isinstance(compiled, Tensor) and isinstance(eager, Tensor):
        for name in ("dtype", "shape", "device", "layout"):
            values = getattr(compiled, name), getattr(eager, name)
            if values[0] != values[1]:
                texts = [list(v) if name == "shape" else v for v in values]
                return f"its {name} is {texts[0]}, eager gives {texts[1]}"
        return None
    kinds = [v if isinstance(v, type) else type(v) for v in (compiled, eager)]
    if kinds[0] is kinds[1]:
        return None
    return f"it is of type {kinds[0].__name__}, eager gives {kinds[1].__name__}"


# -- numbers ---------------------------------------------------------------------------


def _compare_tensors(
    compiled: Tensor, eager: Tensor, allowed: Allowance
) -> ValueComparison:
    if not _has_digits(eager):
        return _compare_discrete(_flat(compiled), _flat(eager))
    kind = torch.finfo(eager.dtype)
    flat = _flat(compiled), _flat(eager)
    typical, largest = _size(eager)
    worst, gaps, all_close, example = 0.0, [0.0], True, ""
    squares = 0.0
    for i, (one, other) in enumerate(_chunks(*flat)):
        if why := _different_specials(one, other, kind, allowed):
            return ValueComparison("wrong", None, None, why)
        gap = torch.where(one.isfinite() & other.isfinite(), one - other, 0.0).abs()
        size = torch.where(other.isfinite(), other, 0.0).abs()
        limit = allowed.element * (size + typical) + allowed.floor + kind.tiny
        excess = gap / limit
        if float(excess.amax()) > worst:
            worst, at = float(excess.amax()), int(excess.argmax())
            example = (
                f"element {i * _CHUNK + at} is {one[at]:.6g},"
                f" eager gives {other[at]:.6g}"
            )
        squares += float(gap.square().sum())
        gaps.append(float(gap.amax()))
        all_close &= bool((gap <= _FEW_ROUNDINGS * kind.eps * size + kind.tiny).all())
    # A relative error means nothing for numbers that consist of rounding only.
    error = max(gaps) / largest if largest > allowed.floor else None
    if not max(gaps):
        error = 0.0
    if worst > 1:
        return ValueComparison("wrong", error, None, example)
    root = math.sqrt(flat[0].numel())
    apart, limit_of_all = math.sqrt(squares), allowed.whole * typical * root
    if apart > limit_of_all + allowed.floor * root and not all_close:
        share = apart / (typical * root) if typical else math.inf
        return ValueComparison("wrong", error, None, f"off by {share:.2g} of its norm")
    return ValueComparison("same" if all_close else "rounding", error)


def _different_specials(
    compiled: Tensor, eager: Tensor, kind: torch.finfo, allowed: Allowance
) -> str | None:
    """Describes a NaN or infinity that only one side has; None if there is none.

    An infinity is allowed if the other side is close to the type's largest number.
    """
    nan = compiled.isnan() != eager.isnan()
    if bool(nan.any()):
        whose = "compiled" if bool((nan & compiled.isnan()).any()) else "eager"
        count = f"{int(nan.sum())} of {nan.numel()} elements"
        return f"only {whose} code gives NaN, in {count}"
    infinite = (compiled.isinf() | eager.isinf()) & (compiled != eager)
    limit = kind.max * (1 - allowed.element)
    both_large = (compiled.abs() >= limit) & (eager.abs() >= limit)
    differs = infinite & ~(both_large & (compiled * eager > 0))
    if bool(differs.any()):
        at = int(differs.int().argmax())
        return f"an element is {compiled[at]:.6g}, eager gives {eager[at]:.6g}"
    return None


def _compare_discrete(compiled: Tensor, eager: Tensor) -> ValueComparison:
    if torch.equal(compiled, eager):
        return ValueComparison("same", 0.0)
    differ = compiled != eager
    at = int(differ.int().argmax())
    example = f"element {at} is {compiled[at]}, eager gives {eager[at]}"
    count = f"{int(differ.sum())} of {differ.numel()} elements differ"
    return ValueComparison("wrong", None, None, f"{count}: {example}")


def _size(tensor: Tensor) -> tuple[float, float]:
    """The root mean square and the largest of a tensor's finite elements."""
    squares, largest, count = 0.0, 0.0, 0
    for plain in trees.plain_tensors(tensor):
        for (values,) in _chunks(_flat(plain)):
            finite = torch.where(values.isfinite(), values, 0.0).abs()
            squares += float(finite.square().sum())
            largest = max(largest, float(finite.amax()))
            count += finite.numel()
    return math.sqrt(squares / max(1, count)), largest


def _chunks(*flat: Tensor) -> Iterator[tuple[Tensor, ...]]:
    for parts in zip(*(torch.split(each, _CHUNK) for each in flat), strict=True):
        if parts[0].numel():
            yield tuple(part.double() for part in parts)


def _flat(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.reshape(-1)
