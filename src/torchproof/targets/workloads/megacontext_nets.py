"""The three nets of MegaContext: base GPT, GistNet and LensNet, with the same block.

A sequence is a tree: its token embeddings are level 0, and each higher level has one
gist for `block` entries of the level below. A pool holds all levels of a sequence one
after the other. A working context is a row of indices into the pool, padded with -1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchproof.targets.workloads import layers
from torchproof.targets.workloads.layers import Rotation

LEVELS = 2  # gists of tokens, and gists of gists


@dataclass(frozen=True)
class Size:
    """The dimensions of the nets, of a training micro-step and of a session."""

    depth: int
    dim: int
    heads: int
    vocabulary: int
    length: int  # tokens in a training sequence or a prompt
    block: int  # entries that one gist represents
    recent: int  # tokens at the end that are never collapsed
    batch: int
    variants: int = 1  # random working contexts of a sample, in addition to its tail
    level_2_share: float = 0.1  # the share of random contexts with gists of gists
    refocus_every: int = 32  # tokens
    grain: int = 128  # the width of a CUDA graph is a multiple of this

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


SIZES = {
    "tiny": Size(2, 64, 2, 256, 192, 4, 16, 2, 2, 0.5, refocus_every=8, grain=16),
    "base": Size(12, 768, 6, 65536, length=2048, block=32, recent=128, batch=4),
}


def norm(x: Tensor) -> Tensor:
    """RMS norm without weights."""
    return F.rms_norm(x, (x.shape[-1],))


def rotation(positions: Tensor, head_dim: int, spans: Tensor | None = None) -> Rotation:
    """Rotary cosines and sines of positions (batch, length).

    An entry that represents a whole span has no exact position. `spans` damps the high
    frequencies: the wider the span, the more of them.
    """
    half = head_dim // 2
    exponents = torch.arange(half, device=positions.device) / half
    frequencies = torch.pow(10000.0, -exponents)
    angles = positions[..., None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    if spans is not None:
        fade = torch.exp(-0.5 * (spans[..., None] * frequencies).square())
        cos, sin = cos * fade, sin * fade
    return cos[:, None], sin[:, None]


class SquaredReLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


def blocks(size: Size, count: int) -> nn.ModuleList:
    """Causal attention with normalised queries and keys, and a squared-ReLU MLP."""
    return nn.ModuleList(
        layers.RotaryBlock(
            layers.RotaryAttention(size.dim, size.heads, size.heads, norm=norm),
            layers.mlp(size.dim, 4 * size.dim, SquaredReLU(), bias=False),
            lambda: nn.RMSNorm(size.dim, elementwise_affine=False),
        )
        for _ in range(count)
    )


class GPT(nn.Module):
    """Entries (batch, length, dim) -> logits for the token that follows each entry."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.dim)
        self.blocks = blocks(size, size.depth)
        self.head = nn.Linear(size.dim, size.vocabulary, bias=False)

    def forward(self, x: Tensor, turn: Rotation, at: Tensor | None = None) -> Tensor:
        """Logits at all entries; with `at` (batch,), at one entry of each row."""
        x = norm(x)
        for block in self.blocks:
            x = block(x, turn)
        if at is not None:
            x = x.gather(1, at[:, None, None].expand(-1, -1, x.shape[-1])).squeeze(1)
        return 15 * torch.tanh(self.head(norm(x)).float() / 15)


class GistNet(nn.Module):
    """Blocks of entries (blocks, block, dim) -> one gist for each (blocks, dim)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head_dim = size.head_dim
        self.blocks = blocks(size, 2)
        self.head = layers.mlp(size.dim, 2 * size.dim, nn.ReLU())

    def forward(self, x: Tensor, counts: Tensor | None = None) -> Tensor:
        """`counts` (blocks,) is the number of valid entries of each block; None: all.

        Missing entries are at the end of a block, so causal attention ignores them.
        """
        places = torch.arange(x.shape[1], device=x.device)
        turn = rotation(places[None], self.head_dim)
        for block in self.blocks:
            x = block(x, turn)
        if counts is None:
            return self.head(x.mean(dim=1))
        masked = torch.where((places < counts[:, None])[..., None], x, 0.0)
        return self.head(masked.sum(dim=1) / counts[:, None].to(x.dtype))


def feature(dim: int) -> nn.Sequential:
    """An MLP that embeds one number."""
    return nn.Sequential(nn.Linear(1, dim), nn.SiLU(), nn.Linear(dim, dim))


class LensNet(nn.Module):
    """A score in [-1, 1] for each entry: expand it if positive, else collapse it."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.block = size.block
        self.blocks = blocks(size, 2)
        self.level = nn.Embedding(4, size.dim)
        self.span = feature(size.dim)
        self.distance = feature(size.dim)
        hidden = max(size.dim, 128)
        self.head = nn.Sequential(
            nn.Linear(2 * size.dim, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(
        self, x: Tensor, positions: Tensor, levels: Tensor, turn: Rotation
    ) -> Tensor:
        for block in self.blocks:
            x = block(x, turn)
        spans = torch.pow(float(self.block), levels)
        # By the largest of each row, so that a score ignores the other rows.
        distances = positions / positions.amax(dim=-1, keepdim=True).clamp(min=1)
        side = (
            self.level(levels)
            + self.span(spans[..., None].to(x.dtype))
            + self.distance(distances[..., None].to(x.dtype))
        )
        return torch.tanh(self.head(torch.cat((x, side), dim=-1))).squeeze(-1)


class Nets(nn.Module):
    """The three nets, which are trained together."""

    lens_net = LensNet

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.base = GPT(size)
        self.gist = GistNet(size)
        self.lens = self.lens_net(size)


class Context(NamedTuple):
    """Working contexts read from a pool, one per row."""

    x: Tensor  # (batch * rows, width, dim)
    positions: Tensor  # (batch * rows, width), the middle of the span of an entry
    levels: Tensor  # (batch * rows, width)
    turn: Rotation
    present: Tensor  # (batch, rows, width), false for padding
    ends: Tensor  # (batch, rows, width), the first token after an entry

    @property
    def lens_inputs(self) -> tuple[Tensor, Tensor, Tensor, Rotation]:
        return self.x, self.positions, self.levels, self.turn


def read(pool: Tensor, entries: Tensor, tokens: int, size: Size) -> Context:
    """Reads rows of slots (batch, rows, width) from pools (batch, slots, dim).

    The first `tokens` slots are level 0. All rows of all samples become one batch.
    """
    gists = tokens // size.block
    slots = entries.clamp(min=0)
    levels = (slots >= tokens).long() + (slots >= tokens + gists).long()
    level_starts = tokens * (levels > 0) + gists * (levels > 1)
    spans = torch.pow(size.block, levels)
    starts = (slots - level_starts) * spans
    positions = (starts + spans // 2).flatten(0, 1)
    x = pool.gather(1, slots.flatten(1)[..., None].expand(-1, -1, size.dim))
    return Context(
        x=x.unflatten(1, entries.shape[1:]).flatten(0, 1),
        positions=positions,
        levels=levels.flatten(0, 1),
        turn=rotation(positions, size.head_dim, spans.flatten(0, 1)),
        present=entries >= 0,
        ends=starts + spans,
    )
