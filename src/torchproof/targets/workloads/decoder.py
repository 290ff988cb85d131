"""A stack of 24 narrow decoder layers, where kernel launches dominate the time.

All calls have one shape, and there are no graph breaks. The time between kernels, which
CUDA graphs remove, is what is left to optimise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchproof.targets.workloads.gpt import block
from torchproof.targets.workloads.synthetic import number_type

CALLS = 4


@dataclass(frozen=True)
class Size:
    """The dimensions of one stack, and the shape of its calls."""

    layers: int
    dim: int
    heads: int
    batch: int
    sequence: int


SIZES = {
    "tiny": Size(layers=4, dim=128, heads=4, batch=2, sequence=32),
    "base": Size(layers=24, dim=512, heads=8, batch=8, sequence=512),
}


class Decoder(nn.Module):
    """Hidden states (batch, sequence, dim) -> hidden states of the same shape."""

    def __init__(self, size: Size, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            block(size.dim, size.heads, dtype=dtype) for _ in range(size.layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for each in self.blocks:
            x = each(x)
        return x


def make(
    size: str = "tiny",
    batch: int | None = None,
    sequence: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
) -> tuple[Decoder, list[tuple[Tensor]]]:
    """Returns the stack and calls of one shape."""
    torch.manual_seed(0)
    spec, dtype = SIZES[size], number_type(device)
    shape = batch or spec.batch, sequence or spec.sequence, spec.dim
    with torch.device(device):
        stack = Decoder(spec, dtype=dtype)
        calls = [(torch.randn(shape, dtype=dtype),) for _ in range(CALLS)]
    return stack.train(train).requires_grad_(train), calls
