"""Generates inputs for a package, with other values and sizes than the calls have.

Takes the tensors of the calls, returns tensors of the same types whose values are
random, tiny, huge, negative, constant, sorted, or at the ends of a range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from torchproof.runtime import order_of

Tensors = list[torch.Tensor]
MOST_ELEMENTS = 2**22


@dataclass(frozen=True)
class ValueGenerator:
    """A generator of values: `floats` transforms normal random numbers, `whole` uniform
    ones from 0 to 1, which are then scaled to a range of integers.

    `special` values may break a correct model too: their result counts only if they
    take another path through the code.
    """

    name: str
    floats: Callable[[torch.Tensor], torch.Tensor]
    whole: Callable[[torch.Tensor], torch.Tensor] = lambda share: share
    special: bool = False


def _part(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def put(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x.view(-1)[: max(1, x.numel() // 8)] = value
        return x

    return put


def _sorted(x: torch.Tensor) -> torch.Tensor:
    return x.flatten().sort().values.view(x.shape)


VALUE_GENERATORS: tuple[ValueGenerator, ...] = (
    ValueGenerator("random values", lambda x: x),
    ValueGenerator("values 1000 times as large", lambda x: x * 1e3),
    ValueGenerator("values 1000 times as small", lambda x: x * 1e-3),
    ValueGenerator("positive values", torch.abs, lambda s: s / 2),
    ValueGenerator("negative values", lambda x: -x.abs(), lambda s: (s + 1) / 2),
    ValueGenerator("zeros", torch.zeros_like, torch.zeros_like),
    ValueGenerator("ones", torch.ones_like, torch.ones_like),
    ValueGenerator("sorted values", _sorted, _sorted),
    ValueGenerator(
        "descending values", lambda x: -_sorted(x), lambda s: 1 - _sorted(s)
    ),
    ValueGenerator("huge values", lambda x: x * 1e9, special=True),
    ValueGenerator("values with NaN", _part(float("nan")), special=True),
    ValueGenerator("values with infinity", _part(float("inf")), special=True),
)
RANDOM = VALUE_GENERATORS[0]


def generate_inputs(
    calls: Sequence[Tensors],
    values: ValueGenerator,
    seed: int,
    shapes: Sequence[Sequence[int]] | None = None,
) -> Tensors:
    """Inputs like those of the first call, with generated values and given shapes."""
    generator = torch.Generator().manual_seed(seed)
    inputs = []
    for i, like in enumerate(calls[0]):
        shape = tuple(like.shape if shapes is None else shapes[i])
        examples = [call[i] for call in calls]
        fresh = _values(examples, shape, values, generator)
        order = order_of(like)
        back = [order.index(d) for d in range(like.dim())]
        laid = fresh.to(like.device).permute(order).contiguous().permute(back)
        inputs.append(laid)
    return inputs


def _values(
    examples: Sequence[torch.Tensor],
    shape: tuple[int, ...],
    values: ValueGenerator,
    generator: torch.Generator,
) -> torch.Tensor:
    kind = examples[0].dtype
    if kind.is_complex:
        pair = [values.floats(torch.randn(shape, generator=generator)) for _ in "ab"]
        return torch.complex(*pair).to(kind)
    if kind.is_floating_point:
        scale, shift = _scale(examples)
        return (
            values.floats(torch.randn(shape, generator=generator)) * scale + shift
        ).to(kind)
    low, high = _ends(examples)
    share = values.whole(torch.rand(shape, generator=generator))
    return (low + (share * (high - low + 1)).floor().clamp(max=high - low)).to(kind)


def _scale(examples: Sequence[torch.Tensor]) -> tuple[float, float]:
    """The scale and shift of random values: the standard deviation, around 0."""
    flat = torch.cat([t.detach().double().flatten().cpu() for t in examples])
    flat = flat[flat.isfinite()]
    if flat.numel() < 2:
        return 1.0, 0.0
    return float(flat.std()) or 1.0, 0.0


def _ends(examples: Sequence[torch.Tensor]) -> tuple[int, int]:
    """The range of the integers in the calls; masks are 0 and 1."""
    full = [t for t in examples if t.numel()]
    if examples[0].dtype is torch.bool or not full:
        return 0, 1
    low, high = min(int(t.min()) for t in full), max(int(t.max()) for t in full)
    return (0, 1) if low == high == 1 else (low, high)


def other_sizes(size: int, low: int = 1, high: int | None = None) -> list[int]:
    """Sizes to try instead: the ends of the range, neighbours, odd and larger sizes."""
    tried = {low, low + 1, size - 1, size + 1, 2 * size + 1, 4 * size}
    if high is not None:
        tried |= {high, high - 1}
    fits = {s for s in tried if low <= s and (high is None or s <= high)}
    return sorted(fits - {size})


def fits_memory(shapes: Sequence[Sequence[int]]) -> bool:
    return all(torch.Size(shape).numel() <= MOST_ELEMENTS for shape in shapes)
