"""Whether compiled code's values are eager's: same, off by rounding, or wrong.

In come two values of any structure, or two dicts of tensors, and an allowance. Out goes
a `Likeness`. Structure, types, shapes, integers, truth values and text must be equal,
NaN and infinities in the same places. Other numbers must be within the tolerance of
the shortest floating type that took part in computing them, `TOLERANCES`:

    type       each element   as a whole      gradients: element, whole
    float64    1e-8           1e-9            1e-7    1e-8
    float32    3e-4           2e-4            3e-3    2e-3
    float16    0.016          0.008           0.06    0.03     (TF32 likewise)
    bfloat16   0.125          0.06            0.5     0.25
    float8     0.5            0.25            1       0.5

"Each element": no element may differ by more than this times the sum of its size and
the root mean square of its tensor. "As a whole": the norm of the difference, over the
norm of eager's tensor. On top comes what rounding leaves of numbers that cancel to
nothing, such as the gradient of a bias in front of a batch norm: a few epsilons of the
largest number among all outputs, or among all gradients.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from torchproof.runtime.tensors.tree import plain_tensors, walk

Verdict = Literal["same", "rounding", "wrong"]

_TF32 = torch.float16  # as many digits
# element, whole, and both for gradients
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
class Likeness:
    """How alike two values are; `error` is relative to the largest element."""

    verdict: Verdict
    error: float | None = None
    where: str | None = None
    why: str = ""


@dataclass(frozen=True)
class Allowance:
    """What is excused: per element and as a whole, with a floor under both."""

    type: torch.dtype
    element: float
    whole: float
    floor: float = 0.0


def allowance(
    types: Iterable[torch.dtype], values: Iterable[Tensor], *, gradients: bool = False
) -> Allowance:
    """For values computed in these types; `values` are all of eager's."""
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
    """Floating types of tensors, and those torch is told to compute in instead.

    `weights`: those of the tensors that may be weights of convolutions.
    """
    found = {_real(each.dtype) for each in tensors if _has_digits(each)}
    for device in {each.device.type for each in tensors} - {"meta"}:
        if torch.is_autocast_enabled(device):
            found.add(torch.get_autocast_dtype(device))
    if torch.float32 in found:
        cuda = any(each.is_cuda for each in tensors)
        found |= _types_of_products(cuda, any(each.dim() >= 3 for each in weights))
    return found


def _types_of_products(cuda: bool, convolutions: bool) -> set[torch.dtype]:
    """What float32 is rounded to before it is multiplied, where torch may do so."""
    named = {"tf32": _TF32, "bf16": torch.bfloat16}
    backends: Any = torch.backends  # whose stubs lack these
    if not cuda:
        told = [backends.mkldnn.matmul.fp32_precision] if _mkldnn() else []
    else:
        told = [backends.cuda.matmul.fp32_precision]
        if convolutions:  # weights of a convolution have three dimensions or more
            told.append(backends.cudnn.conv.fp32_precision)
    return {named[each] for each in told if each in named}


def _mkldnn() -> bool:
    return bool(torch.backends.mkldnn.is_available())


def _shortest(types: Iterable[torch.dtype]) -> torch.dtype:
    known = [t if t in TOLERANCES else _stand_in(t) for t in map(_real, types)]
    return max(known, key=lambda t: torch.finfo(t).eps, default=torch.float32)


def _stand_in(kind: torch.dtype) -> torch.dtype:
    return torch.float8_e4m3fn if torch.finfo(kind).bits <= 8 else torch.float32


def _real(kind: torch.dtype) -> torch.dtype:
    return kind.to_real() if kind.is_complex else kind


def _has_digits(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


# -- structures ------------------------------------------------------------------------


def parts_of(value: Any, label: str) -> dict[str, Any]:
    """The parts of a value by label: tensors without history, of containers the type.

    So it keeps no more of the value alive than is compared.
    """
    found: dict[str, Any] = {}
    for name, part in walk(value, label):
        if isinstance(part, Tensor):
            found[name] = part.detach()
        else:
            found[name] = part if isinstance(part, _SIMPLE) else type(part)
    return found


def compare_parts(
    given: Mapping[str, Any], eager: Mapping[str, Any], allowed: Allowance | None
) -> Likeness:
    """What goes by the same label on both sides; the worst of all is returned.

    Without an allowance only types, shapes and labels are compared.
    """
    found = Likeness("same", 0.0)
    for label in {**eager, **given}:
        if label not in given or label not in eager:
            whose = "only eager has it" if label in eager else "eager does not have it"
            return Likeness("wrong", None, label, whose)
        for one in _compare_part(given[label], eager[label], allowed):
            if one.verdict == "wrong":
                return Likeness("wrong", one.error, label, one.why)
            if _rank(one) > _rank(found):
                found = Likeness(one.verdict, one.error, label)
    return found


def _rank(one: Likeness) -> tuple[bool, float]:
    return one.verdict == "rounding", one.error or 0.0


def _compare_part(
    given: Any, eager: Any, allowed: Allowance | None
) -> Iterator[Likeness]:
    if (difference := _different_form(given, eager)) is not None:
        yield Likeness("wrong", None, None, difference)
    elif isinstance(eager, Tensor):
        if allowed is None or eager.device.type == "meta":
            return
        pairs = zip(plain_tensors(given), plain_tensors(eager), strict=True)
        yield from (_compare_tensors(one, other, allowed) for one, other in pairs)
    elif isinstance(eager, float | complex):
        if allowed is not None:
            numbers = [torch.tensor(v, device="cpu") for v in (given, eager)]
            yield _compare_tensors(numbers[0], numbers[1], allowed)
    elif isinstance(eager, _EXACT) and given != eager and allowed is not None:
        yield Likeness("wrong", None, None, f"it is {given!r}, eager gives {eager!r}")


def _different_form(given: Any, eager: Any) -> str | None:
    if isinstance(given, Tensor) and isinstance(eager, Tensor):
        for name in ("dtype", "shape", "device", "layout"):
            mine, others = getattr(given, name), getattr(eager, name)
            if mine != others:
                shown = [list(v) if name == "shape" else v for v in (mine, others)]
                return f"its {name} is {shown[0]}, eager gives {shown[1]}"
        return None
    mine, others = (v if isinstance(v, type) else type(v) for v in (given, eager))
    if mine is others:
        return None
    return f"it is of type {mine.__name__}, eager gives {others.__name__}"


# -- numbers ---------------------------------------------------------------------------


def _compare_tensors(given: Tensor, eager: Tensor, allowed: Allowance) -> Likeness:
    if not _has_digits(eager):
        return _compare_discrete(_flat(given), _flat(eager))
    kind = torch.finfo(eager.dtype)
    a, e = _flat(given), _flat(eager)
    typical, largest = _size(eager)
    worst, gaps, all_close, example = 0.0, [0.0], True, ""
    squares = 0.0
    for i, (mine, others) in enumerate(_chunks(a, e)):
        if told := _different_specials(mine, others, kind, allowed):
            return Likeness("wrong", None, None, told)
        gap = torch.where(mine.isfinite() & others.isfinite(), mine - others, 0.0).abs()
        size = torch.where(others.isfinite(), others, 0.0).abs()
        limit = allowed.element * (size + typical) + allowed.floor + kind.tiny
        excess = gap / limit
        if float(excess.amax()) > worst:
            worst, at = float(excess.amax()), int(excess.argmax())
            example = (
                f"element {i * _CHUNK + at} is {mine[at]:.6g},"
                f" eager gives {others[at]:.6g}"
            )
        squares += float(gap.square().sum())
        gaps.append(float(gap.amax()))
        all_close &= bool((gap <= _FEW_ROUNDINGS * kind.eps * size + kind.tiny).all())
    # Of numbers that are nothing but rounding, a relative error says nothing.
    error = max(gaps) / largest if largest > allowed.floor else None
    if not max(gaps):
        error = 0.0
    if worst > 1:
        return Likeness("wrong", error, None, example)
    root = math.sqrt(a.numel())
    apart, limit_of_all = math.sqrt(squares), allowed.whole * typical * root
    if apart > limit_of_all + allowed.floor * root and not all_close:
        share = apart / (typical * root) if typical else math.inf
        return Likeness("wrong", error, None, f"off by {share:.2g} of its norm")
    return Likeness("same" if all_close else "rounding", error)


def _different_specials(
    mine: Tensor, others: Tensor, kind: torch.finfo, allowed: Allowance
) -> str | None:
    """NaN or infinity on one side only, in words.

    An infinity is excused where the other side is about the largest number there is.
    """
    nan = mine.isnan() != others.isnan()
    if bool(nan.any()):
        whose = "compiled" if bool((nan & mine.isnan()).any()) else "eager"
        count = f"{int(nan.sum())} of {nan.numel()} elements"
        return f"only {whose} code gives NaN, in {count}"
    infinite = (mine.isinf() | others.isinf()) & (mine != others)
    nearly = kind.max * (1 - allowed.element)
    excused = (mine.abs() >= nearly) & (others.abs() >= nearly) & (mine * others > 0)
    if bool((infinite & ~excused).any()):
        at = int((infinite & ~excused).int().argmax())
        return f"an element is {mine[at]:.6g}, eager gives {others[at]:.6g}"
    return None


def _compare_discrete(given: Tensor, eager: Tensor) -> Likeness:
    if torch.equal(given, eager):
        return Likeness("same", 0.0)
    differ = given != eager
    at = int(differ.int().argmax())
    told = f"element {at} is {given[at]}, eager gives {eager[at]}"
    count = f"{int(differ.sum())} of {differ.numel()} elements differ"
    return Likeness("wrong", None, None, f"{count}: {told}")


def _size(tensor: Tensor) -> tuple[float, float]:
    """Root mean square and largest of the finite elements of a tensor."""
    squares, largest, count = 0.0, 0.0, 0
    for plain in plain_tensors(tensor):
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
