"""Chooses a strategy by the size of a model, if nothing has been measured.

Takes a model, also on the meta device; returns a `Plan`. It runs and changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from torchproof.records import JsonObject
from torchproof.torch_private import comparison

Strategy = Literal["full", "regional", "eager"]

FULL_BELOW = 10e9  # parameters
REGIONAL_BELOW = 40e9


@dataclass(frozen=True)
class Plan:
    """A strategy and the reason; the counts are None for a function."""

    strategy: Strategy
    why: str
    parameters: int | None = None
    bytes: int | None = None  # of parameters and buffers, on all devices

    def to_json(self) -> JsonObject:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return f"{self.strategy}: {self.why}"


def plan(
    model: Any,
    *,
    full_below: float = FULL_BELOW,
    regional_below: float = REGIONAL_BELOW,
) -> Plan:
    """Whether to compile the whole model, its repeated blocks, or nothing.

    The limits are numbers of parameters. A model at a limit belongs to the larger ones.
    """
    if not isinstance(model, nn.Module):
        return Plan("full", "a function: it has no parameters to count")
    count = sum(_numel(each) for each in model.parameters())
    size = _bytes(model.parameters()) + _bytes(model.buffers())
    amount = f"{_amount(count)} parameters"
    if count < full_below:
        why = f"{amount}, below {_amount(full_below)}: compiled as a whole"
        return Plan("full", why, count, size)
    if count < regional_below:
        why = (
            f"{amount}, from {_amount(full_below)} and below {_amount(regional_below)}:"
            " compiled block by block, because compile time grows with the graph"
        )
        return Plan("regional", why, count, size)
    why = (
        f"{amount}, not below {_amount(regional_below)}: not compiled without a"
        " measurement; pass example= and min_gain= to measure it, or strategy="
    )
    return Plan("eager", why, count, size)


def _numel(parameter: torch.Tensor) -> int:
    """The number of elements of all shards together."""
    if nn.parameter.is_lazy(parameter):
        return 0  # a lazy module has not created it yet
    # FSDP's flat parameters are views of one shard; `numel` of a DTensor counts all.
    whole = getattr(parameter, "_unpadded_unsharded_size", None)
    return int(whole.numel() if whole is not None else parameter.numel())


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(
        _numel(each) * each.itemsize
        if not _is_packed(each)
        else sum(
            part.numel() * part.itemsize for part in comparison.plain_tensors(each)
        )
        for each in tensors
    )


def _is_packed(tensor: torch.Tensor) -> bool:
    """Whether its data lies in tensors of another type, as of quantised weights."""
    return any(part.dtype != tensor.dtype for part in comparison.plain_tensors(tensor))


def _amount(count: float) -> str:
    for unit, word in ((1e9, " billion"), (1e6, " million"), (1e3, " thousand")):
        if count >= unit:
            return f"{count / unit:.4g}{word}"
    return f"{count:g}"
