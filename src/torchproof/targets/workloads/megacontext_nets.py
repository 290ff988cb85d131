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

LEVELS = 2  # gists of tokens, and gists of gists
Rotation = tuple[Tensor, Tensor]  # cosines and sines, (batch, 1, length, head_dim / 2)


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
    "tiny": Size(
        depth=2,
        dim=64,
        heads=2,
        vocabulary=256,
        length=192,
        block=4,
        recent=16,
        batch=2,
        variants=2,
        level_2_share=0.5,
        refocus_every=8,
        grain=16,
    ),
    "base": Size(
        depth=12,
        dim=768,
        heads=6,
        vocabulary=65536,
        length=2048,
        block=32,
        recent=128,
        batch=4,
    ),
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


def rotate(x: Tensor, turn: Rotation) -> Tensor:
    """Rotates queries or keys (batch, heads, length, head_dim), half against half."""
    cos, sin = (part.to(x.dtype) for part in turn)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Block(nn.Module):
    """Causal attention with normalised queries and keys, and a squared-ReLU MLP."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head_dim = size.head_dim
        self.query = nn.Linear(size.dim, size.dim, bias=False)
        self.key = nn.Linear(size.dim, size.dim, bias=False)
        self.value = nn.Linear(size.dim, size.dim, bias=False)
        self.out = nn.Linear(size.dim, size.dim, bias=False)
        self.up = nn.Linear(size.dim, 4 * size.dim, bias=False)
        self.down = nn.Linear(4 * size.dim, size.dim, bias=False)

    def forward(self, x: Tensor, turn: Rotation) -> Tensor:
        x = x + self.attend(norm(x), turn)
        return x + self.down(F.relu(self.up(norm(x))).square())

    def attend(self, x: Tensor, turn: Rotation) -> Tensor:
        query = norm(rotate(self.split(self.query(x)), turn))
        key = norm(rotate(self.split(self.key(x)), turn))
        value = self.split(self.value(x))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        # (batch, length, dim) -> (batch, heads, length, head_dim)
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class GPT(nn.Module):
    """Entries (batch, length, dim) -> logits for the token that follows each entry."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.dim)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.depth))
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
        self.blocks = nn.ModuleList(Block(size) for _ in range(2))
        self.head = nn.Sequential(
            nn.Linear(size.dim, 2 * size.dim),
            nn.ReLU(),
            nn.Linear(2 * size.dim, size.dim),
        )

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
        self.blocks = nn.ModuleList(Block(size) for _ in range(2))
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
        distances = positions / self.farthest(positions).clamp(min=1)
        side = (
            self.level(levels)
            + self.span(spans[..., None].to(x.dtype))
            + self.distance(distances[..., None].to(x.dtype))
        )
        return torch.tanh(self.head(torch.cat((x, side), dim=-1))).squeeze(-1)

    def farthest(self, positions: Tensor) -> Tensor:
        """The largest position of each row, so that a score ignores the other rows."""
        return positions.amax(dim=-1, keepdim=True)


class Nets(nn.Module):
    """The three nets, which are trained together."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.base = GPT(size)
        self.gist = GistNet(size)
        self.lens = LensNet(size)


class Context(NamedTuple):
    """Working contexts read from a pool, one per row."""

    x: Tensor  # (batch * rows, width, dim)
    positions: Tensor  # (batch * rows, width), the middle of the span of an entry
    levels: Tensor  # (batch * rows, width)
    turn: Rotation
    present: Tensor  # (batch, rows, width), false for padding
    ends: Tensor  # (batch, rows, width), the first token after an entry


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
