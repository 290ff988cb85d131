"""The decoder of `gpt` before the fixes, as such models are often written.

Its `forward` logs, reads tensors back into Python, branches on their values and keeps
Python state between calls. This works in eager mode, but not with `torch.compile`.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from torchproof.targets.workloads import gpt
from torchproof.targets.workloads.synthetic import number_type, token_ids

logger = logging.getLogger(__name__)

CALLS = 12


class GPT(gpt.GPT):
    """Token ids (batch, sequence) -> logits (batch, sequence, vocabulary)."""

    def __init__(self, size: gpt.Size, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(size, dtype=dtype)
        self.step = 0
        self.history: list[float] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.step += 1
        limit = 1000.0 * min(1.0, self.step / 100)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        if torch.isinf(x).any():
            x = torch.clamp(x, -60000.0, 60000.0)
        logits = self.head(self.norm(x)).clamp(-limit, limit)
        print(f"step {self.step}: largest logit {logits.abs().max()}")
        spread = logits.std()
        self.history.append(spread.item())
        if len(self.history) > 1:
            change = self.history[-1] - self.history[-2]
            logger.info("spread %.4f, change %.4f", self.history[-1], change)
        return logits


def make(
    size: str = "tiny",
    batch: int | None = None,
    sequence: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
) -> tuple[GPT, list[tuple[Tensor]]]:
    """Returns the model and twelve calls of one shape."""
    torch.manual_seed(0)
    spec = gpt.SIZES[size]
    usual_batch, usual_sequence = (4, 64) if size == "tiny" else gpt.SHAPES[0]
    shape = batch or usual_batch, sequence or usual_sequence
    with torch.device(device):
        model = GPT(spec, dtype=number_type(device))
    calls = [(token_ids(spec.vocabulary, *shape, device),) for _ in range(CALLS)]
    return model.train(train).requires_grad_(train), calls
