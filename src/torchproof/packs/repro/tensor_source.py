"""Writes an expression that creates a tensor like a given one, without its data.

It keeps shape, strides, dtype and device, the range of integers and the distribution of
floats. Numbers are drawn on the CPU, so they are the same on every device.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_FEW = 4  # distinct numbers at most in a mask or a flag
_SAMPLE = 4096
_LARGEST = 2**62


def tensor_source(tensor: Tensor) -> str:
    """Returns an expression for a dense tensor; it does not require gradients."""
    if tensor.is_contiguous() or not tensor.numel():
        return numbers_source(tensor, tuple(tensor.shape))
    return numbers_source(tensor, (extent(tensor),)) + view_source(tensor)


def view_source(tensor: Tensor, offset: int = 0) -> str:
    """Returns the method call that views flat memory as the tensor."""
    shape, stride = tuple(tensor.shape), tensor.stride()
    return f".as_strided({shape}, {stride}{f', {offset}' if offset else ''})"


def extent(tensor: Tensor) -> int:
    """Returns how many elements of storage a tensor spans."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * step for size, step in steps) if tensor.numel() else 0


def numbers_source(tensor: Tensor, shape: tuple[int, ...]) -> str:
    """Returns a contiguous tensor of this shape with numbers like the tensor's."""
    target = [] if tensor.device.type == "cpu" else [repr(str(tensor.device))]
    numbers = tensor.detach()
    if tensor.is_complex():
        numbers = torch.view_as_real(numbers.resolve_conj())
        drawn, dtype = _drawn(numbers, (*shape, 2))
        drawn = f"torch.view_as_complex({drawn})"
        dtype = {torch.float64: torch.complex128}.get(dtype, torch.complex64)
    else:
        drawn, dtype = _drawn(numbers, shape)
    if dtype != tensor.dtype:
        target.append(str(tensor.dtype))
    return f"{drawn}.to({', '.join(target)})" if target else drawn


def _drawn(numbers: Tensor, shape: tuple[int, ...]) -> tuple[str, torch.dtype]:
    """Returns an expression and the dtype of its value."""
    if not numbers.numel() or numbers.is_meta:
        return f"torch.zeros({shape})", torch.float32
    if not numbers.is_floating_point():
        whole = numbers.to(torch.int64)
        low, high = int(whole.min()), int(whole.max())
        if low == high:
            return f"torch.full({shape}, {low})", torch.int64
        low, high = max(low, -_LARGEST), min(high, _LARGEST)
        return f"torch.randint({low}, {high + 1}, {shape})", torch.int64
    few = _few(numbers.reshape(-1))
    if len(few) == 1:
        return f"torch.full({shape}, {_number(few[0])})", torch.float32
    if few:
        options = ", ".join(map(_number, few))
        return (
            f"torch.tensor([{options}])[torch.randint({len(few)}, {shape})]",
            torch.float32,
        )
    finite = numbers.double().reshape(-1)
    return _distribution(finite[finite.isfinite()], shape, numbers.dtype)


def _few(numbers: Tensor) -> list[float]:
    """Returns the distinct numbers if there are few of them, otherwise none."""
    for part in (numbers[:_SAMPLE], numbers):
        distinct = torch.unique(part.double())
        if len(distinct) > _FEW or bool(distinct.isnan().any()):
            return []
    # A tensor this small may have few distinct numbers by chance.
    return distinct.tolist() if len(distinct) == 1 or len(numbers) > 2 * _FEW else []


def _distribution(
    numbers: Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[str, torch.dtype]:
    """Draws magnitudes between the extremes if all signs agree, else a normal one."""
    if not len(numbers):
        return f"torch.full({shape}, float('nan'))", torch.float32
    sizes = numbers.abs()
    sizes = sizes[sizes > 0]
    if len(sizes) and (bool((numbers >= 0).all()) or bool((numbers <= 0).all())):
        low, high = math.log(float(sizes.min())), math.log(float(sizes.max()))
        sign = "-" if float(numbers.min()) < 0 else ""
        drawn = f"torch.empty({shape}, dtype=torch.float64)"
        return f"{sign}{drawn}.uniform_({low:.6g}, {high:.6g}).exp()", torch.float64
    wide = dtype == torch.float64
    size = ", ".join(map(str, shape)) or "()"
    text = f"torch.randn({size}{', dtype=torch.float64' if wide else ''})"
    spread = float(numbers.std(correction=0))
    mean = _rounded(float(numbers.mean()), spread)
    scale = _rounded(spread, 0.0)
    text += "" if scale == 1.0 else f" * {scale:.2g}"
    text += "" if mean == 0.0 else f" + {mean:.2g}"
    plain = scale == 1.0 and mean == 0.0
    return text if plain else f"({text})", torch.float64 if wide else torch.float32


def _rounded(number: float, spread: float) -> float:
    """Rounds to two digits, to 0 within the noise, and to 1 close to 1."""
    if abs(number) < spread / 10:
        return 0.0
    return 1.0 if 0.9 < number < 1.1 else number


def _number(number: Any) -> str:
    """Writes a float as source; infinities have no literal."""
    return repr(number) if math.isfinite(number) else f"float('{number}')"
