"""The decoder of `gpt` before the fixes, as such models are often written.

Its `forward` logs, reads tensors in Python, branches on them and keeps Python state.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from torch import Tensor

from torchproof.targets.workloads import gpt

logger = logging.getLogger(__name__)

CALLS = 12


class GPT(gpt.GPT):
    """Token ids (batch, sequence) -> logits (batch, sequence, vocabulary)."""

    def __init__(self, size: gpt.Size, **options: Any) -> None:
        super().__init__(size, **options)
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


make = functools.partial(
    gpt.make, kind=GPT, usual=([(4, 64)] * CALLS, [gpt.SHAPES[0]] * CALLS)
)
