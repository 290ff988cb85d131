"""The GPT of `gpt.py` as a server runs it, with a static key-value cache.

`ServedGPT` is a text model: it computes the same function as `GPT`, a prompt or one
token at a time. FlexAttention becomes SDPA with the same window.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class CachedBlock(nn.Module):
    """A block of the GPT, with the keys and values of one sequence.

    They are buffers, so that CUDA graphs find them at the same address in every call.
    """

    keys: Tensor  # (1, length, heads, head_dim)
    values: Tensor

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.block = block

    def allocate(self, length: int) -> None:
        attention = self.block.attention
        heads = attention.out.in_features // attention.head_dim
        shape = 1, length, heads, attention.head_dim
        for name in ("keys", "values"):
            empty = self.block.attention_norm.weight.new_zeros(shape)
            self.register_buffer(name, empty, persistent=False)

    def forward(
        self, x: Tensor, positions: Tensor, *, mask: Tensor | None, cached: bool
    ) -> Tensor:
        """Writes keys and values at the positions, and attends.

        If `cached`, it attends to everything in the cache, otherwise to `x` alone.
        """
        attention = self.block.attention
        query, key, value = attention.split(self.block.attention_norm(x))
        self.keys[:, positions] = key.transpose(1, 2)
        self.values[:, positions] = value.transpose(1, 2)
        if cached:
            key, value = self.keys.transpose(1, 2), self.values.transpose(1, 2)
        x = x + attention.mix(query, key, value, mask)
        return x + self.block.mlp(self.block.mlp_norm(x))


class ServedGPT(nn.Module):
    """The text model of a `GPT`, which has no positional embedding: any length fits."""

    context = None

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.vocabulary = model.embedding.num_embeddings
        self.blocks = nn.ModuleList(CachedBlock(block) for block in model.blocks)
        self.length = 0

    def allocate(self, slots: int, length: int) -> None:
        self.length = length
        for block in self.blocks:
            assert isinstance(block, CachedBlock)
            block.allocate(length)

    def prefill(self, tokens: Tensor, length: Tensor, slot: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        # Padding comes after the prompt: a causal mask hides it, and decode overwrites
        # its keys and values before they become visible.
        mask = None if self.model.window is None else self._visible(places, places)
        x = self.model.embedding(tokens)
        for block in self.blocks:
            x = block(x, places, mask=mask, cached=False)
        return self._logits(x.index_select(1, length - 1)[:, 0])

    def decode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        places = torch.arange(self.length, device=tokens.device)
        mask = self._visible(positions, places)
        x = self.model.embedding(tokens)
        for block in self.blocks:
            x = block(x, positions, mask=mask, cached=True)
        return self._logits(x[:, 0])

    def _visible(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Which keys each query attends to, by their positions."""
        distance = queries[:, None] - keys[None]
        visible = distance >= 0
        window = self.model.window
        return visible if window is None else visible & (distance < window)

    def _logits(self, x: Tensor) -> Tensor:
        return self.model.head(self.model.norm(x))
