"""A pre-norm decoder with rotary positions that compiles into one graph."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Size:
    """The dimensions of one decoder."""

    layers: int
    dim: int
    heads: int
    vocabulary: int
    context: int


SIZES = {
    "tiny": Size(layers=4, dim=128, heads=4, vocabulary=512, context=256),
    "small": Size(layers=12, dim=768, heads=12, vocabulary=50304, context=1024),
}


def rotary_table(context: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each (context, head_dim)."""
    exponent = torch.arange(0, head_dim, 2) / head_dim
    angles = torch.outer(torch.arange(context).float(), 10000.0**-exponent)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn queries or keys (batch, heads, sequence, head_dim) by their position."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head_dim = size.dim // size.heads
        self.qkv = nn.Linear(size.dim, 3 * size.dim, bias=False)
        self.out = nn.Linear(size.dim, size.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # (batch, sequence, 3 * dim) -> 3 x (batch, heads, sequence, head_dim)
        qkv = self.qkv(x).unflatten(-1, (3, -1, self.head_dim))
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.dim)
        self.attention = Attention(size)
        self.mlp_norm = nn.RMSNorm(size.dim)
        self.mlp = nn.Sequential(
            nn.Linear(size.dim, 4 * size.dim, bias=False),
            nn.GELU(),
            nn.Linear(4 * size.dim, size.dim, bias=False),
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


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

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def make(
    size: str = "tiny",
    batch: int | None = None,
    sequence: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
) -> tuple[GPT, list[tuple[Tensor]]]:
    """The model and four calls; the last has another sequence length."""
    batch, sequence = batch or 4, sequence or 64
    lengths = [sequence, sequence, sequence, sequence + sequence // 2]
    spec = SIZES[size]
    spec = replace(spec, context=max(spec.context, *lengths))
    shapes = [(batch, length) for length in lengths]
    calls = [(torch.randint(spec.vocabulary, shape),) for shape in shapes]
    return GPT(spec).train(train), calls
