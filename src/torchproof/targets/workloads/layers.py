"""The transformer layers that the workloads share, on (batch, tokens, dim)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

Rotation = tuple[Tensor, Tensor]  # cosines and sines, (..., tokens, head_dim / 2)


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(
        self, attention: nn.Module, mlp: nn.Module, norm: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        self.attention_norm, self.attention = norm(), attention
        self.mlp_norm, self.mlp = norm(), mlp

    def forward(self, x: Tensor, mask: Tensor | BlockMask | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.mlp(self.mlp_norm(x))


class RotaryBlock(Block):
    """A block with rotary positions; Dynamo compiles its code separately."""

    def forward(self, x: Tensor, turn: Rotation) -> Tensor:  # type: ignore[override]
        x = x + self.attention(self.attention_norm(x), turn)
        return x + self.mlp(self.mlp_norm(x))


class Attention(nn.Module):
    """Attention with one matrix for queries, keys and values.

    Without a `mask` it is causal or sees every token. A head's rows of the weight are
    adjacent, so that ranks can divide it by heads.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        causal: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.head_dim, self.causal = dim // heads, causal
        self.qkv = nn.Linear(dim, 3 * dim, dtype=dtype)
        self.out = nn.Linear(dim, dim, dtype=dtype)

    def forward(self, x: Tensor, mask: Tensor | BlockMask | None = None) -> Tensor:
        return self.mix(*self.split(x), mask)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (batch, heads, tokens, head_dim)."""
        qkv = self.qkv(x).unflatten(-1, (-1, 3, self.head_dim))
        query, key, value = qkv.permute(3, 0, 2, 1, 4).unbind()
        return query, key, value

    def mix(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | BlockMask | None = None,
    ) -> Tensor:
        if isinstance(mask, BlockMask):
            mixed = flex_attention(query, key, value, block_mask=mask)
        else:
            causal = self.causal and mask is None
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=causal
            )
        return self.out(mixed.transpose(1, 2).flatten(2))


class RotaryAttention(nn.Module):
    """Causal attention with rotary positions.

    It may have fewer heads for keys and values than for queries. `norm` is applied to
    queries and keys. Batches are padded on the right, so no token attends to padding:
    the causal mask is sufficient, and fast kernels support it.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        key_heads: int,
        *,
        norm: Callable[[Tensor], Tensor] = lambda x: x,
    ) -> None:
        super().__init__()
        self.head_dim, self.shared = dim // heads, heads // key_heads
        self.norm = norm
        keys = key_heads * self.head_dim
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, keys, bias=False)
        self.value = nn.Linear(dim, keys, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, turn: Rotation) -> Tensor:
        query = self.norm(rotate(self.split(self.query(x)), turn))
        key = self.norm(rotate(self.split(self.key(x)), turn))
        value = self.split(self.value(x))
        if self.shared > 1:
            key = key.repeat_interleave(self.shared, dim=1)
            value = value.repeat_interleave(self.shared, dim=1)
        return self.out(self.mix(query, key, value).transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        # (batch, tokens, dim) -> (batch, heads, tokens, head_dim)
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def rotate(x: Tensor, turn: Rotation) -> Tensor:
    """Rotates queries or keys (batch, heads, tokens, head_dim), half against half."""
    cos, sin = (part.to(x.dtype) for part in turn)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def mlp(
    dim: int,
    hidden: int,
    activation: nn.Module | None = None,
    *,
    bias: bool = True,
    dtype: torch.dtype | None = None,
) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(dim, hidden, bias=bias, dtype=dtype),
        activation or nn.GELU(),
        nn.Linear(hidden, dim, bias=bias, dtype=dtype),
    )


# -- images ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Vision:
    """The dimensions of a vision transformer."""

    dim: int
    inner: int
    blocks: int
    heads: int
    image: int = 512
    patch: int = 16

    @property
    def side(self) -> int:
        """Patches in a row of an image."""
        return self.image // self.patch


class VisionTransformer(nn.Module):
    """Images (images, 3, height, width) -> patches (images, patches, dim).

    With `class_token`, a trained token precedes the patches, and is cut off at the end.
    """

    def __init__(
        self, size: Vision, *, class_token: bool = False, gelu: str = "none"
    ) -> None:
        super().__init__()
        self.patch = size.patch
        self.embedding = nn.Linear(3 * size.patch**2, size.dim)
        tokens = size.side**2 + class_token
        self.positions = nn.Parameter(torch.randn(1, tokens, size.dim) * 0.02)
        if class_token:
            self.class_token = nn.Parameter(torch.zeros(1, 1, size.dim))
        self.blocks = nn.ModuleList(
            Block(
                Attention(size.dim, size.heads, causal=False),
                mlp(size.dim, size.inner, nn.GELU(gelu)),
                lambda: nn.LayerNorm(size.dim, eps=1e-6),
            )
            for _ in range(size.blocks)
        )
        self.norm = nn.LayerNorm(size.dim, eps=1e-6)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embedding(self.pixels(images))
        patches = x.shape[1]
        if patches < self.positions.shape[1]:
            x = torch.cat((self.class_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self.positions
        for block in self.blocks:
            x = block(x)
        return self.norm(x)[:, -patches:]

    def pixels(self, images: Tensor) -> Tensor:
        """The pixels of each patch as one row (images, patches, 3 * patch * patch).

        Followed by a Linear, this equals a convolution with stride = kernel size. For a
        convolution with an unbacked batch, Inductor assumes the wrong output strides.
        """
        x = images.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))
        return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
