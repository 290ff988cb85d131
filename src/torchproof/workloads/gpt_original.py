"""The decoder of `gpt` as it is often written.

It logs from `forward`, reads tensors back into Python, branches on their values and
keeps Python state between calls. Eager runs it well; `torch.compile` does not.
"""

import logging
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchproof.workloads.gpt import SIZES, Size, rotary_table, rotate

logger = logging.getLogger(__name__)


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.query = nn.Linear(size.dim, size.dim, bias=False)
        self.key = nn.Linear(size.dim, size.dim, bias=False)
        self.value = nn.Linear(size.dim, size.dim, bias=False)
        self.out = nn.Linear(size.dim, size.dim, bias=False)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query = rotate(self.split(self.query(x)), cos, sin)
        key = rotate(self.split(self.key(x)), cos, sin)
        value = self.split(self.value(x))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.dim)
        self.attention = Attention(size)
        self.mlp_norm = nn.RMSNorm(size.dim)
        self.up = nn.Linear(size.dim, 4 * size.dim, bias=False)
        self.down = nn.Linear(4 * size.dim, size.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class GPT(nn.Module):
    """Token ids (batch, sequence) -> logits (batch, sequence, vocabulary)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.dim)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.dim)
        self.head = nn.Linear(size.dim, size.vocabulary, bias=False)
        cos, sin = rotary_table(size.context, size.dim // size.heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.step = 0
        self.history: list[float] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.step += 1
        warmth = min(1.0, self.step / 100)
        length = tokens.shape[1]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos[:length], self.sin[:length])
        if torch.isinf(x).any():
            x = torch.clamp(x, -60000.0, 60000.0)
        logits = self.head(self.norm(x)) * warmth
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
    """The model and twelve calls of one shape."""
    spec = SIZES[size]
    batch, sequence = batch or 4, sequence or 64
    spec = replace(spec, context=max(spec.context, sequence))
    calls = [(torch.randint(spec.vocabulary, (batch, sequence)),) for _ in range(12)]
    return GPT(spec).train(train), calls
