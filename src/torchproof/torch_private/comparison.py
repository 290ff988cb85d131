"""Compares values of compiled code with eager's: the same, rounding, or wrong.

Every comparison of the project is made here. The file needs only torch and the standard
library, because a repro contains its text.

Types, shapes, text, integers and booleans must be equal; NaN and infinities must be in
the same places. How far other numbers may be off depends on what is known of eager's
own error:

- With eager's outputs in float64, or of runs on inputs that differ by a rounding, no
  element may be further from the exact value than eager's own errors allow. An error
  is compared with eager's errors on elements of similar size. So a few huge elements do
  not excuse wrong small ones, and an element that eager happens to get exact does not
  count as wrong.
- With a `Tolerance`, that of the shortest type that took part in the computation:

    type       each element   as a whole      gradients: element, whole
    float64    1e-8           1e-9            1e-7    1e-8
    float32    3e-4           2e-4            3e-3    2e-3
    float16    0.016          0.008           0.06    0.03     (TF32 likewise)
    bfloat16   0.125          0.06            0.5     0.25
    float8     0.5            0.25            1       0.5

  "Each element": no element may differ by more than this times the sum of its size and
  the root mean square of its tensor. "As a whole": the norm of the difference divided
  by the norm of eager's tensor. Numbers that cancel to zero consist of rounding only;
  for them the tolerance adds a few epsilons of the largest number.
- With neither, a fixed number of roundings.

`forms_of` and `form_differences` compare what values do not show: strides,
`requires_grad`, and which outputs and inputs share memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from torchproof.records import shapes
from torchproof.records.form_difference import FormDifference

Verdict = Literal["same", "rounding", "wrong"]
How = Literal["value", "nan", "infinity", "form"]
Answers = Mapping[str, Any]

# The distance from eager after a few reordered operations, in epsilons of the dtype.
FEW_ROUNDINGS = 4
# The allowed error, as a multiple of eager's own largest error.
EXCUSE = 8
# The number of samples from which eager's largest error is reliable.
ENOUGH_SAMPLES = 16
# If eager's error is unknown: epsilons of the element and of the typical element.
# Kernels accumulate short dtypes in longer ones, so fewer roundings add up.
MANY_ROUNDINGS, MANY_SHORT_ROUNDINGS = 64, 8
# If eager's error is half the size of an output, the output is rounding noise only.
ONLY_ROUNDING = 0.5
# (element, whole, element of gradients, whole of gradients)
TOLERANCES: dict[torch.dtype, tuple[float, float, float, float]] = {
    torch.float64: (1e-8, 1e-9, 1e-7, 1e-8),
    torch.float32: (3e-4, 2e-4, 3e-3, 2e-3),
    torch.float16: (0.016, 0.008, 0.06, 0.03),
    torch.bfloat16: (0.125, 0.06, 0.5, 0.25),
    torch.float8_e4m3fn: (0.5, 0.25, 1.0, 0.5),
}
CHUNK = 1 << 22  # elements compared at a time, in float64
# The same with a tolerance. A comparison needs some 100 bytes for each of them, beside
# a step that may fill the device.
PIECE = 1 << 19
NUMBERS = (bool, int, float, complex)
PLAIN = (str, bytes, type, type(None), torch.dtype, torch.device)


@dataclass(frozen=True)
class Comparison:
    """The verdict; None, with a reason, if the values cannot be judged.

    The errors are those of one output, `where`, relative to its largest element: the
    most wrong output, else the one with the largest error.
    """

    verdict: Verdict | None
    max_rel_error: float | None = None
    eager_error: float | None = None
    reference: Literal["float64", "eager"] = "eager"
    where: str | None = None
    why: str = ""
    how: How = "value"  # what is wrong, if it is
    excess: float = 0.0  # the worst error relative to the allowed one
    final: bool = False  # no further run of eager could excuse it

    def to_json(self) -> shapes.Numerics:
        return {
            "verdict": self.verdict,
            "max_rel_error": self.max_rel_error,
            "eager_error": self.eager_error,
            "reference": self.reference,
            "where": self.where,
            "why": self.why,
            "how": self.how,
        }


def wrong(why: str, where: str | None = None, *, how: How = "value") -> Comparison:
    return Comparison(
        "wrong", where=where, why=why, how=how, excess=math.inf, final=True
    )


def compare(
    answers: Answers,
    eager: Answers,
    exact: Answers | None = None,
    *,
    perturbed: Callable[[], Sequence[Answers]] = tuple,
    tolerance: Tolerance | None = None,
) -> Comparison:
    """Compares values by label with eager's; `exact` are those in float64.

    `perturbed` returns the outputs of eager runs whose inputs differ by a rounding. It
    is only called if an output would be wrong otherwise.
    """
    compared: dict[str, Comparison] = {}
    others: Sequence[Answers] | None = None
    for label in {**eager, **answers}:
        if isinstance(answers.get(label, eager.get(label)), Form):
            continue
        if label not in answers or label not in eager:
            whose = "only eager gives it" if label in eager else "eager gives none"
            compared[label] = wrong(whose, how="form")
            continue
        values = answers[label], eager[label], (exact or {}).get(label)
        one = compare_value(*values, tolerance=tolerance)
        if tolerance is None and in_doubt(one):
            others = perturbed() if others is None else others
            samples = [other.get(label) for other in others]
            one = compare_value(*values, samples=samples)
        compared[label] = one
    if not compared and tolerance is not None:
        return Comparison("same", 0.0)
    return summary(compared)


def worst(comparisons: Iterable[Comparison]) -> Comparison:
    order = ("same", "rounding", None, "wrong")
    return max(
        comparisons, key=lambda one: (order.index(one.verdict), shown_error(one))
    )


def in_doubt(one: Comparison) -> bool:
    """Whether more runs of eager could excuse it, or are needed to know its error."""
    if one.verdict == "wrong":
        return not one.final
    return one.verdict == "rounding" and one.reference == "eager"


def summary(compared: Mapping[str, Comparison]) -> Comparison:
    """The most wrong comparison, else one that cannot be judged, else the largest."""
    verdicts: tuple[Verdict | None, ...] = ("wrong", None, "rounding", "same")
    reached = {one.verdict for one in compared.values()}
    verdict = next((v for v in verdicts if v in reached), None)
    if not compared:
        return Comparison(None, why="the target has no outputs that can be compared")
    candidates = [(k, one) for k, one in compared.items() if one.verdict == verdict]
    if verdict == "wrong":
        where, worst = max(candidates, key=lambda pair: pair[1].excess)
    elif verdict is None:
        where, worst = candidates[0]
    else:
        where, worst = max(candidates, key=lambda pair: shown_error(pair[1]))
    exact = any(one.reference == "float64" for one in compared.values())
    reference: Literal["float64", "eager"] = "float64" if exact else "eager"
    return dataclasses.replace(worst, where=where, reference=reference)


def shown_error(one: Comparison) -> float:
    noise = (one.eager_error or 0.0) > ONLY_ROUNDING
    return -1.0 if one.max_rel_error is None or noise else one.max_rel_error


# -- one value -------------------------------------------------------------------------


def compare_value(
    output: Any,
    eager: Any,
    exact: Any = None,
    *,
    samples: Sequence[Any] = (),
    tolerance: Tolerance | None = None,
) -> Comparison:
    """Compares one value; references of another shape or kind are not used."""
    if (difference := different_form(output, eager)) is not None:
        return wrong(difference, how="form")
    if not isinstance(eager, (Tensor, *NUMBERS)):
        if not isinstance(eager, PLAIN):
            return Comparison(None, why=f"{eager} cannot be compared")
        if output == eager:
            return Comparison("same", 0.0)
        return wrong(f"it is {output!r}, eager gives {eager!r}")
    if isinstance(eager, Tensor) and eager.is_meta:
        return Comparison("same", 0.0)
    kind = kind_of_float(output, eager) if isinstance(eager, float) else None
    compared = {}
    pairs = zip(plain_tensors(output), plain_tensors(eager), strict=True)
    for number, (one, other) in enumerate(pairs):
        e = as_tensor(other, kind)
        references = [fitting(each, e) for each in (exact, *samples)]
        compared[str(number)] = compare_tensors(
            as_tensor(one, kind).to(e.device),
            e,
            references[0],
            [each for each in references[1:] if each is not None],
            tolerance=tolerance,
        )
    return dataclasses.replace(summary(compared), where=None)


def different_form(output: Any, eager: Any) -> str | None:
    """How type, dtype, shape, device or layout differ, or None."""
    if not isinstance(output, Tensor) or not isinstance(eager, Tensor):
        kinds = [v if isinstance(v, type) else type(v) for v in (output, eager)]
        names = [
            "Tensor" if issubclass(kind, Tensor) else kind.__name__ for kind in kinds
        ]
        if kinds[0] is kinds[1] or names == ["Tensor", "Tensor"]:
            return None
        return f"it is of type {names[0]}, eager gives {names[1]}"
    for name in ("dtype", "shape", "device", "layout"):
        values = getattr(output, name), getattr(eager, name)
        if values[0] != values[1]:
            texts = [list(v) if name == "shape" else v for v in values]
            return f"its {name} is {texts[0]}, eager gives {texts[1]}"
    return None


def plain_tensors(value: Any) -> Iterator[Any]:
    """The tensors that contain the data: the inner ones of a wrapper subclass."""
    flatten = getattr(value, "__tensor_flatten__", None)
    if flatten is None:
        yield value
        return
    if (wait := getattr(value, "trigger_wait", None)) is not None:
        wait()  # the data of an AsyncCollectiveTensor may still be on its way
    for name in flatten()[0]:
        inner = getattr(value, name)
        if isinstance(inner, Tensor):
            yield from plain_tensors(inner)


def in_memory(tensor: Tensor) -> Iterator[Tensor]:
    """The strided tensors in which a tensor's data lies; none if they are unknown.

    A sparse tensor has its indices and values.
    """
    rows = torch.sparse_csr, torch.sparse_bsr
    columns = torch.sparse_csc, torch.sparse_bsc
    for each in plain_tensors(tensor):
        plain = each.detach()
        if plain.layout is torch.sparse_coo:
            yield from (plain._indices(), plain._values())
        elif plain.layout in rows:
            yield from (plain.crow_indices(), plain.col_indices(), plain.values())
        elif plain.layout in columns:
            yield from (plain.ccol_indices(), plain.row_indices(), plain.values())
        elif plain.is_nested:
            yield plain.values()
        elif plain.layout is torch.strided:
            yield each


def kind_of_float(output: float, eager: float) -> torch.dtype:
    """Guesses from their digits in which dtype Python floats were computed."""
    short = [float(torch.tensor(v, dtype=torch.float32)) for v in (output, eager)]
    same = all(
        rounded == value or value != value
        for rounded, value in zip(short, (output, eager), strict=True)
    )
    return torch.float32 if same else torch.float64


def as_tensor(value: Any, kind: torch.dtype | None = None) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.tensor(value, dtype=kind, device="cpu")
    value = value.detach()
    if value.is_nested:
        value = value.to_padded_tensor(0)
    elif value.layout is not torch.strided:
        value = value.to_dense()
    return value.dequantize() if value.is_quantized else value


def fitting(value: Any, like: Tensor) -> Tensor | None:
    """A reference as a tensor, if its shape and kind match eager's."""
    if not isinstance(value, (Tensor, *NUMBERS)):
        return None
    kind = torch.float64 if isinstance(value, float) else None
    tensor = as_tensor(value, kind).to(like.device)
    alike = tensor.shape == like.shape and (
        tensor.is_floating_point() == like.is_floating_point()
        and tensor.is_complex() == like.is_complex()
    )
    return tensor if alike else None


# -- one tensor ------------------------------------------------------------------------


def compare_tensors(
    output: Tensor,
    eager: Tensor,
    exact: Tensor | None,
    samples: Sequence[Tensor] = (),
    *,
    tolerance: Tolerance | None = None,
) -> Comparison:
    """Compares tensors of one dtype and shape; the references have that shape."""
    if not has_digits(eager):
        return compare_discrete(output, eager, exact, samples)
    kind = torch.finfo(eager.dtype)
    a, e = flat(output), flat(eager)
    x = e if exact is None or kind.bits >= 64 else flat(exact)
    # If the float64 run took another path:
    if x is not e and bool((x.isnan() & ~e.isnan()).any()):
        x = e
    if (why := stray_nan(a, e)) is not None:
        return wrong(f"NaN where eager has none, in {why}", how="nan")
    if tolerance is not None and (why := stray_nan(e, a)) is not None:
        return wrong(f"no NaN where eager has one, in {why}")
    noisy = [each for each in (e, *map(flat, samples)) if each is not x]
    scale = size_of(x)
    if tolerance is not None:
        scale = with_rows(scale, x, eager.shape)
    found = Found()
    for values in chunks(a, e, x, *noisy, size=CHUNK if tolerance is None else PIECE):
        found.add(values[:3], values[3:], kind, scale=scale, tolerance=tolerance)
    result = found.result(scale, has_exact=x is not e, tolerance=tolerance)
    if result.verdict != "wrong" and tolerance is None and bool(e.isnan().any()):
        why = f"eager itself gives NaN, in {share(e.isnan())}"
        return dataclasses.replace(result, verdict=None, why=why)
    return result


def stray_nan(one: Tensor, other: Tensor) -> str | None:
    """How many elements are NaN in the first tensor alone, in words."""
    alone = 0
    for start in range(0, one.numel(), PIECE):
        piece = slice(start, start + PIECE)
        alone += int((one[piece].isnan() & ~other[piece].isnan()).sum())
    return f"{alone} of {one.numel()} elements" if alone else None


@dataclass
class Found:
    """What the chunks of one tensor have shown so far."""

    elements: int = 0
    worst: float = 0.0
    beyond: int = 0
    infinite: int = 0
    example: str = ""
    error: float = 0.0
    eager_error: float = 0.0
    squares: float = 0.0
    all_close: bool = True

    def add(
        self,
        values: Sequence[Tensor],
        noisy: Sequence[Tensor],
        kind: torch.finfo,
        *,
        scale: Scale,
        tolerance: Tolerance | None,
    ) -> None:
        a, e, x = values
        margin = tolerance.element if tolerance else FEW_ROUNDINGS * kind.eps
        infinite = unexcused_infinities(a, e, x, kind.max * (1 - margin))
        noise = torch.zeros_like(x)
        for sample in noisy:
            noise = torch.maximum(noise, distance(sample, x))
        error = torch.where(e.isnan(), 0.0, distance(a, x))
        few = FEW_ROUNDINGS * kind.eps * e.abs() + kind.tiny
        close = (a == e) | (a.isfinite() & e.isfinite() & (distance(a, e) <= few))
        if noisy:
            allowed = allowed_by_noise(x, noise, len(noisy), kind)
        else:
            typical = scale.typical_from(self.elements, len(x))
            allowed = allowed_by_size(x, typical, kind, tolerance)
        excess = torch.where(close, 0.0, error / allowed)
        worst = math.inf if bool(infinite.any()) else float(excess.amax())
        if worst > self.worst:
            at = int((infinite.int() if math.isinf(worst) else excess).argmax())
            self.example = (
                f"element {self.elements + at} is {a[at]:.6g}, eager gives {e[at]:.6g}"
                f"{'' if x is e else f', float64 {x[at]:.6g}'}"
            )
            self.worst = worst
        self.elements += a.numel()
        self.beyond += int((excess > 1).sum())
        self.infinite += int(infinite.sum())
        self.error = max(self.error, float(error.amax()))
        self.eager_error = max(self.eager_error, float(distance(e, x).amax()))
        self.squares += float(error.square().sum())
        self.all_close &= bool((close | e.isnan()).all())

    def result(
        self, scale: Scale, *, has_exact: bool, tolerance: Tolerance | None
    ) -> Comparison:
        if self.infinite:
            many = f"{self.infinite} of {self.elements} elements"
            why = f"infinity on one side only, in {many}: {self.example}"
            return wrong(why, how="infinity")
        verdict: Verdict = "same" if self.all_close else "rounding"
        why, excess = "", self.worst
        if self.worst > 1:
            verdict = "wrong"
            many = f"{self.beyond} of {self.elements} elements"
            why = f"{many} too far off: {self.example}"
        elif tolerance is not None and not self.all_close:
            root = math.sqrt(self.elements)
            limit = (tolerance.whole * scale.typical + tolerance.floor) * root
            apart = math.sqrt(self.squares)
            if apart > limit:
                part = apart / (scale.typical * root) if scale.typical else math.inf
                verdict, excess = "wrong", apart / limit if limit else math.inf
                why = f"off by {part:.2g} of its norm"
        floor = tolerance.floor if tolerance else 0.0
        return Comparison(
            verdict,
            relative(self.error, scale.largest, floor),
            relative(self.eager_error, scale.largest, floor) if has_exact else None,
            reference="float64" if has_exact else "eager",
            why=why,
            excess=excess,
        )


def unexcused_infinities(a: Tensor, e: Tensor, x: Tensor, limit: float) -> Tensor:
    """Where only one side is infinite.

    An infinity is excused if the other side is close to the largest number of the
    dtype, and a finite value if eager overflowed on the way (it is then compared).
    """
    differ = (a != e) & (a.isinf() | e.isinf()) & ~e.isnan()
    excused = (a.abs() >= limit) & (x.abs() >= limit) & (a * x > 0)
    if x is not e:
        excused |= a.isfinite() & x.isfinite()
    return differ & ~excused


def allowed_by_size(
    x: Tensor, typical: Tensor | float, kind: torch.finfo, tolerance: Tolerance | None
) -> Tensor:
    """The allowed error of each element if eager's own error is not known."""
    many = (MANY_ROUNDINGS if kind.bits > 16 else MANY_SHORT_ROUNDINGS) * kind.eps
    element, floor = (tolerance.element, tolerance.floor) if tolerance else (many, 0.0)
    size = torch.where(x.isfinite(), x.abs(), 0.0)
    few = FEW_ROUNDINGS * kind.eps * size + kind.tiny
    return few + element * (size + typical) + floor


def allowed_by_noise(
    x: Tensor, noise: Tensor, samples: int, kind: torch.finfo
) -> Tensor:
    """The allowed error of each element, from eager's errors."""
    size = torch.where(x.isfinite(), x.abs(), 0.0)
    few = FEW_ROUNDINGS * kind.eps * size + kind.tiny
    if samples * size.numel() < ENOUGH_SAMPLES:
        many = MANY_ROUNDINGS if kind.bits > 16 else MANY_SHORT_ROUNDINGS
        few += many * kind.eps * size
    # Two bounds on eager's error hold: its largest error at this size, and its largest
    # relative error. Zeros come from masks and from functions such as ReLU.
    peak = peaks(size, noise, samples)
    part = torch.where(noise > 0, noise / size, 0.0).amax()
    proportional = torch.where(size > 0, part * size, math.inf)
    return few + EXCUSE * torch.minimum(peak, proportional)


def peaks(size: Tensor, noise: Tensor, samples: int) -> Tensor:
    """For each element the largest noise of elements up to its size.

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


def compare_discrete(
    output: Tensor, eager: Tensor, exact: Tensor | None, samples: Sequence[Tensor]
) -> Comparison:
    """Compares integers and booleans; they may differ as often as eager's do.

    Rounding changes results such as argmax, comparisons and rounded values.
    """
    if torch.equal(output, eager):
        return Comparison("same", 0.0, 0.0 if exact is not None else None)
    x = eager if exact is None else exact
    reference: Literal["float64", "eager"] = "eager" if exact is None else "float64"
    unsteady = torch.zeros_like(x, dtype=torch.bool)
    for sample in (eager, *samples):
        unsteady |= sample != x
    off = (output != x) & (output != eager)
    stray = off & ~unsteady
    excess = int(stray.sum()) / max(int(unsteady.sum()), 0.5)
    if excess <= 1:
        return Comparison("rounding", reference=reference, excess=excess)
    at = int(stray.flatten().int().argmax())
    example = (
        f"element {at} is {output.flatten()[at]}, eager gives {eager.flatten()[at]}"
    )
    why = f"{share(off)} differ: {example}"
    return Comparison("wrong", reference=reference, why=why, excess=excess)


# -- numbers ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """The root mean square and the largest of a tensor's finite elements.

    `rows` are the root mean squares of its rows, None if they are short. The gradient
    of an output layer has rows of words that occur, far above all others: its rounding
    errors are as uneven.
    """

    typical: float
    largest: float
    rows: Tensor | None = None
    width: int = 1

    def typical_from(self, start: int, count: int) -> Tensor | float:
        """The typical size around each of `count` elements, from `start` on."""
        if self.rows is None:
            return self.typical
        places = torch.arange(start, start + count, device=self.rows.device)
        return self.rows[places // self.width].clamp(min=self.typical)


def size_of(tensor: Tensor) -> Scale:
    squares, largest, count = 0.0, 0.0, 0
    for (values,) in chunks(flat(tensor), size=PIECE):
        finite = torch.where(values.isfinite(), values, 0.0).abs()
        squares += float(finite.square().sum())
        largest = max(largest, float(finite.amax()))
        count += finite.numel()
    return Scale(math.sqrt(squares / max(1, count)), largest)


SHORTEST_ROW = 32  # a shorter row says little about its size


def with_rows(scale: Scale, values: Tensor, shape: torch.Size) -> Scale:
    """The scale with the sizes of rows; `values` are flat, complex ones as pairs."""
    width = values.numel() // max(1, math.prod(shape[:-1])) if len(shape) > 1 else 0
    if width < SHORTEST_ROW:
        return scale
    squares = [
        torch.where(piece.isfinite(), piece, 0.0).double().square().mean(-1)
        for piece in values.view(-1, width).split(max(1, PIECE // width))
    ]
    return dataclasses.replace(scale, rows=torch.cat(squares).sqrt(), width=width)


def has_digits(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def flat(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.reshape(-1)


def chunks(*flats: Tensor, size: int = CHUNK) -> Iterator[tuple[Tensor, ...]]:
    """The tensors in float64, piece by piece; equal arguments give equal pieces."""
    for pieces in zip(*(torch.split(each, size) for each in flats), strict=True):
        if pieces[0].numel():
            doubles = {
                id(each): piece.double()
                for each, piece in zip(flats, pieces, strict=True)
            }
            yield tuple(doubles[id(each)] for each in flats)


def distance(one: Tensor, other: Tensor) -> Tensor:
    """The distances; 0 for infinities and NaN, which are judged separately."""
    difference = (one - other).abs()
    return torch.where(difference.isfinite(), difference, 0.0)


def relative(error: float, largest: float, floor: float) -> float | None:
    """A relative error means nothing for numbers that consist of rounding only."""
    if not error:
        return 0.0
    return error / largest if largest > floor else None


def share(where: Tensor) -> str:
    return f"{int(where.sum())} of {where.numel()} elements"


# -- tolerances ------------------------------------------------------------------------


@dataclass(frozen=True)
class Tolerance:
    """The tolerated difference per element and as a whole, with a floor for both."""

    type: torch.dtype
    element: float
    whole: float
    floor: float = 0.0


def tolerance_for(
    types: Iterable[torch.dtype], values: Iterable[Any], *, gradients: bool = False
) -> Tolerance:
    """The tolerance for values computed in these types; `values` are all of eager's."""
    kind = shortest(types)
    element, whole, *for_gradients = TOLERANCES[kind]
    roundings = FEW_ROUNDINGS
    if gradients:
        element, whole = for_gradients
        short = torch.finfo(kind).bits <= 16
        roundings = FEW_ROUNDINGS if short else MANY_ROUNDINGS
    tensors = (  # one at a time
        as_tensor(part)
        for each in values
        if isinstance(each, Tensor) and not each.is_meta
        for part in plain_tensors(each)
    )
    largest = max((size_of(t).largest for t in tensors if has_digits(t)), default=0.0)
    return Tolerance(kind, element, whole, roundings * torch.finfo(kind).eps * largest)


def types_in_use(
    tensors: Collection[Tensor], weights: Collection[Tensor]
) -> set[torch.dtype]:
    """The floating-point types of tensors, and those torch computes in instead.

    `weights` are the tensors that may be weights of convolutions.
    """
    types = {real_of(each.dtype) for each in tensors if has_digits(each)}
    for device in {each.device.type for each in tensors} - {"meta"}:
        if torch.is_autocast_enabled(device):
            types.add(torch.get_autocast_dtype(device))
    if torch.float32 in types:
        cuda = any(each.is_cuda for each in tensors)
        types |= types_of_products(cuda, any(each.dim() >= 3 for each in weights))
    return types


def types_of_products(cuda: bool, convolutions: bool) -> set[torch.dtype]:
    """The types that torch may round float32 to before it multiplies."""
    types = {"tf32": torch.float16, "bf16": torch.bfloat16}  # as many mantissa bits
    backends: Any = torch.backends  # the stubs lack `fp32_precision`
    if cuda:
        settings = [backends.cuda.matmul.fp32_precision]
        if convolutions:  # weights of a convolution have three dimensions or more
            settings.append(backends.cudnn.conv.fp32_precision)
    elif backends.mkldnn.is_available():
        settings = [backends.mkldnn.matmul.fp32_precision]
    else:
        settings = []
    return {types[each] for each in settings if each in types}


def shortest(types: Iterable[torch.dtype]) -> torch.dtype:
    def listed(kind: torch.dtype) -> torch.dtype:
        short = torch.finfo(kind).bits <= 8
        stand_in = torch.float8_e4m3fn if short else torch.float32
        return kind if kind in TOLERANCES else stand_in

    kinds = [listed(real_of(each)) for each in types]
    return max(kinds, key=lambda kind: torch.finfo(kind).eps, default=torch.float32)


def real_of(kind: torch.dtype) -> torch.dtype:
    return kind.to_real() if kind.is_complex else kind


# -- strides, gradients and memory -----------------------------------------------------


@dataclass(frozen=True)
class Form:
    """What the values of a tensor do not show.

    `strides` are those of dimensions with more than one element. `shares` are the
    labels of the inputs and the other outputs whose memory overlaps with its own.
    """

    strides: tuple[int, ...] | None
    contiguous: bool
    requires_grad: bool
    shares: frozenset[str]


def forms_of(outputs: Answers, inputs: Answers) -> dict[str, Form]:
    """The forms of the tensors among the outputs of a call, right after it."""
    spans: dict[Any, list[tuple[str, int, int]]] = {}
    for label, value in {**inputs, **outputs}.items():
        if isinstance(value, Tensor) and (memory := memory_of(value)) is not None:
            spans.setdefault(memory[0], []).append((label, *memory[1:]))
    forms = {}
    for label, value in outputs.items():
        if not isinstance(value, Tensor) or value.is_meta:
            continue
        strided = value.layout is torch.strided and not value.is_nested
        sizes = zip(value.shape, value.stride(), strict=True) if strided else ()
        storage, begin, end = memory_of(value) or (None, 0, 0)
        others = {
            name
            for name, first, last in spans.get(storage, ())
            if name != label and begin < last and first < end
        }
        forms[label] = Form(
            tuple(stride for size, stride in sizes if size > 1) if strided else None,
            strided and value.is_contiguous(),
            value.requires_grad,
            frozenset(others),
        )
    return forms


def memory_of(tensor: Tensor) -> tuple[Any, int, int] | None:
    """The storage of a tensor, and the first and last byte that it shows there."""
    plain = type(tensor) in (Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not plain or tensor.layout is not torch.strided or tensor.is_meta:
        return None
    if tensor.is_nested or not tensor.numel():
        return None
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    first = int(tensor.storage_offset())
    last = first + sum((size - 1) * stride for size, stride in sizes)
    storage = tensor.device, tensor.untyped_storage().data_ptr()
    return storage, first * tensor.itemsize, (last + 1) * tensor.itemsize


def form_differences(compiled: Answers, eager: Answers) -> list[FormDifference]:
    """How the forms among some answers differ, for outputs that both have.

    Compiled code may copy outputs that share memory with each other in eager.
    """
    outputs = {label.removeprefix("form of ") for label in eager}
    return [
        each
        for label, form in eager.items()
        if isinstance(form, Form) and isinstance(compiled.get(label), Form)
        for each in form_difference(
            label.removeprefix("form of "), compiled[label], form, outputs
        )
    ]


def form_difference(
    label: str, one: Form, other: Form, outputs: Collection[str]
) -> Iterator[FormDifference]:
    if one.requires_grad != other.requires_grad:
        does = "requires" if one.requires_grad else "does not require"
        eager = "does not" if one.requires_grad else "does"
        why = f"it {does} a gradient, eager's {eager}"
        yield FormDifference(label, "requires_grad", why, not one.requires_grad)
    if one.strides is not None and one.strides != other.strides:
        why = f"its strides are {one.strides}, eager's {other.strides}"
        if one.contiguous != other.contiguous:
            why += f": it is {'' if one.contiguous else 'not '}contiguous"
        harmful = other.contiguous and not one.contiguous
        yield FormDifference(label, "strides", why, harmful)
    if gained := sorted(one.shares - other.shares):
        why = f"it shares memory with {gained[0]}, eager's does not"
        yield FormDifference(label, "memory", why, True)
    if lost := sorted(other.shares - one.shares - set(outputs)):
        why = f"it does not share memory with {lost[0]}, eager's does"
        yield FormDifference(label, "memory", why, False)
