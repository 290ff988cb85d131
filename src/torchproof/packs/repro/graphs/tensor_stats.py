"""Describes tensors by shape, layout and distribution, without their data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchproof.packs.repro.graphs.expressions import NotPortable
from torchproof.packs.repro.graphs.graph_ir import TensorFacts, Values
from torchproof.torch_private import is_wrapped

_FEW = 4  # distinct numbers at most in a mask or a flag
_SAMPLE = 4096
_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
_LARGEST = 2**62


def is_plain(tensor: Tensor) -> bool:
    """Whether `TensorFacts` describe a tensor: it is dense and no subclass."""
    usual = type(tensor) in _PLAIN and tensor.layout == torch.strided
    return usual and not is_wrapped(tensor)


def facts(tensor: Tensor) -> TensorFacts:
    """Returns the facts of a real tensor."""
    if not is_plain(tensor):
        kind = type(tensor).__name__
        raise NotPortable(f"it uses a tensor of type {kind} and layout {tensor.layout}")
    return TensorFacts(
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        requires_grad=tensor.requires_grad,
        values=_values(tensor.detach()),
    )


def traced_facts(value: Any) -> TensorFacts | None:
    """Returns the facts of a traced tensor; None if a size is symbolic."""
    if not isinstance(value, Tensor):
        return None
    sizes = (*value.shape, *value.stride())
    if not all(type(size) is int for size in sizes):
        return None
    return TensorFacts(
        shape=tuple(value.shape),
        stride=tuple(value.stride()),
        dtype=str(value.dtype).removeprefix("torch."),
        device=str(value.device),
        requires_grad=value.requires_grad,
    )


def _values(tensor: Tensor) -> Values | None:
    if not tensor.numel():
        return None
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point():
        whole = tensor.to(torch.int64)
        low, high = int(whole.min()), int(whole.max())
        if low == high:
            return Values("fill", (low,))
        return Values("whole", (max(low, -_LARGEST), min(high, _LARGEST)))
    return _few(tensor) or _many(tensor)


def _few(tensor: Tensor) -> Values | None:
    numbers = tensor.reshape(-1)
    for part in (numbers[:_SAMPLE], numbers):
        distinct = torch.unique(part.double())
        if len(distinct) > _FEW or bool(distinct.isnan().any()):
            return None
    options = tuple(distinct.tolist())
    if len(options) == 1:
        return Values("fill", options)
    # A tensor this small may have few distinct numbers by chance.
    return Values("choice", options) if len(numbers) > 2 * _FEW else None


def _many(tensor: Tensor) -> Values:
    numbers = tensor.double().reshape(-1)
    numbers = numbers[numbers.isfinite()]
    if not len(numbers):
        return Values("fill", (float(tensor.reshape(-1)[0]),))
    low, high = float(numbers.min()), float(numbers.max())
    if low >= 0 or high <= 0:
        sizes = numbers.abs()
        sizes = sizes[sizes > 0]
        if len(sizes):
            bounds = (float(sizes.min()), float(sizes.max()))
            return Values("positive" if low >= 0 else "negative", bounds)
    spread = float(numbers.std(correction=0))
    return Values(
        "normal", (_rounded(float(numbers.mean()), spread), _rounded(spread, 0))
    )


def _rounded(number: float, spread: float) -> float:
    """Rounds to two digits, to 0 within the noise, and to 1 close to 1."""
    if abs(number) < spread / 10:
        return 0.0
    return 1.0 if 0.9 < number < 1.1 else float(f"{number:.2g}")
