"""Runs a target again and again, and compares each pass with outputs, bit by bit.

Comparing once does not show a race between kernels: it may take hundreds of replays
until one kernel reads what another has not written yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torchproof.measure.replies import Replayed


def count_equal(
    run: Callable[[], Mapping[str, Any]], expected: Mapping[str, Any], count: int
) -> Replayed:
    """Stops at the first pass with a bit that differs."""
    for number in range(count):
        if differs := _first_difference(run(), expected):
            return Replayed(number, differs)
    return Replayed(count)


def _first_difference(
    outputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> str | None:
    if outputs.keys() != expected.keys():
        return min(outputs.keys() ^ expected.keys())
    return next(
        (name for name in expected if not _is_same(outputs[name], expected[name])), None
    )


def _is_same(value: Any, expected: Any) -> bool:
    if not isinstance(value, Tensor) or not isinstance(expected, Tensor):
        return repr(value) == repr(expected)  # NaN is not equal to itself
    alike = value.dtype == expected.dtype and value.shape == expected.shape
    return alike and torch.equal(_bits(value), _bits(expected))


def _bits(tensor: Tensor) -> Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.reshape(-1).view(torch.uint8)
