"""A pre-norm GPT from 1M to 127B parameters; one graph for any batch and length.

Attention is SDPA or FlexAttention, each with an optional sliding window. There is no
positional embedding. The names of the sizes are nominal; the registry lists the exact
parameter counts. `make` creates the weights layer by layer with their final dtype and
device; on the meta device they take no memory. With `fp8`, the linear layers of each
block become FP8 as soon as the block exists; embedding and head keep their dtype.

Several ranks divide the layers by `GPT.tensor_parallel_plan`. With `deferred`, `make`
leaves the weights on the meta device, for ranks that create only their share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from torchproof.records import UserError
from torchproof.targets.workloads import layers
from torchproof.targets.workloads.fp8_linear import with_fp8_weights
from torchproof.targets.workloads.synthetic import (
    any_batch,
    any_length,
    number_type,
    token_ids,
)

# Batch and sequence of the calls. FlexAttention works in blocks of 128 tokens, and
# compiles a separate graph for sequences that fit into one block. Uncompiled, it keeps
# the score of every pair of tokens in memory, so its sequences are limited.
SHAPES = [(8, 1024), (4, 2048), (2, 4096), (2, 8192), (1, 12288), (1, 16384)]
TINY_SHAPES = [(4, 160), (1, 192), (3, 144), (1, 256), (2, 200), (8, 136)]
LONGEST_WITH_FLEX = 4096


@dataclass(frozen=True)
class Size:
    """The dimensions of one decoder. The MLP is four times as wide as `dim`."""

    layers: int
    dim: int
    heads: int
    vocabulary: int = 50304


SIZES = {
    "tiny": Size(layers=4, dim=128, heads=4, vocabulary=512),
    "small": Size(layers=12, dim=1024, heads=16),
    "medium": Size(layers=24, dim=1536, heads=16),
    "large": Size(layers=24, dim=2048, heads=16),
    "xl": Size(layers=32, dim=2560, heads=20),
    "5b": Size(layers=40, dim=4096, heads=32),
    "10b": Size(layers=50, dim=5120, heads=40),
    "20b": Size(layers=60, dim=6144, heads=48),
    "40b": Size(layers=48, dim=8192, heads=64),
    "50b": Size(layers=80, dim=8192, heads=64),
    "70b": Size(layers=86, dim=8192, heads=64),
    "100b": Size(layers=100, dim=10240, heads=80),
}


def block(dim: int, heads: int, *, dtype: torch.dtype) -> layers.Block:
    return layers.Block(
        layers.Attention(dim, heads, dtype=dtype),
        layers.mlp(dim, 4 * dim, dtype=dtype),
        lambda: nn.LayerNorm(dim, dtype=dtype),
    )


class GPT(nn.Module):
    """Token ids (batch, sequence) -> logits (batch, sequence, vocabulary).

    With a `window`, a token attends to itself and the `window - 1` tokens before it.
    """

    # The embedding is whole on each rank: torch cannot divide one for any batch size.
    tensor_parallel_plan: ClassVar = {
        "blocks.*.attention.qkv": "colwise",
        "blocks.*.attention.out": "rowwise",
        "blocks.*.mlp.0": "colwise",
        "blocks.*.mlp.2": "rowwise",
        "head": "colwise_gather_output",
    }

    def __init__(
        self,
        size: Size,
        *,
        attention: str = "sdpa",
        window: int | None = None,
        dtype: torch.dtype = torch.float32,
        fp8: bool = False,
    ) -> None:
        super().__init__()
        self.attention, self.window = attention, window
        self.tensor_parallel_heads = size.heads  # each rank gets whole heads
        self.embedding = nn.Embedding(size.vocabulary, size.dim, dtype=dtype)
        blocks: Iterator[nn.Module] = (
            block(size.dim, size.heads, dtype=dtype) for _ in range(size.layers)
        )
        # One block after the other: all of them do not fit into memory unquantised.
        self.blocks = nn.ModuleList(map(with_fp8_weights, blocks) if fp8 else blocks)
        self.norm = nn.LayerNorm(size.dim, dtype=dtype)
        self.head = nn.Linear(size.dim, size.vocabulary, bias=False, dtype=dtype)

    def mask(self, length: int, device: torch.device) -> Tensor | BlockMask | None:
        """The attention mask for a sequence of this length, shared by all layers."""
        if self.attention == "sdpa" and self.window is None:
            return None
        window = length if self.window is None else self.window

        def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query - key < window)

        if self.attention == "flex":
            return create_block_mask(visible, None, None, length, length, device=device)
        place = torch.arange(length, device=device)
        return visible(place, place, place[:, None], place[None, :])

    def forward(self, tokens: Tensor) -> Tensor:
        # Build the mask inside the graph: a block mask as an input fixes the length.
        mask = self.mask(tokens.shape[1], tokens.device)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def make(
    size: str = "tiny",
    batch: int | None = None,
    sequence: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
    attention: str = "sdpa",
    fp8: bool = False,
    deferred: bool = False,
) -> tuple[GPT, list[tuple[Tensor]]]:
    """Returns the model and calls of several shapes, marked as dynamic.

    `batch` and `sequence` apply to every call. Weights require gradients only in
    training. FlexAttention has a sliding window. It has no backward on the CPU, so
    training on the CPU uses SDPA with the same window as a dense mask. With `fp8`, the
    weights are those of the same seed, quantised, and inference is all they can do.
    With `deferred`, the weights are on the meta device, and the calls are the same.
    """
    torch.manual_seed(0)
    if fp8 and train:
        raise UserError("FP8 weights have no gradients: use workload:gpt to train")
    window = None
    if attention == "flex":
        window = 64 if size == "tiny" else 512
    if train and device == "cpu":
        attention = "sdpa"
    spec = SIZES[size]
    dtype = number_type(device)
    with torch.device("meta" if deferred else device):
        model = GPT(spec, attention=attention, window=window, dtype=dtype, fp8=fp8)
    shapes = TINY_SHAPES if size == "tiny" else SHAPES
    if attention == "flex":
        shapes = [shape for shape in shapes if shape[1] <= LONGEST_WITH_FLEX]
    calls = []
    torch.manual_seed(1)  # whether or not the weights have been drawn
    for usual_batch, usual_sequence in shapes:
        shape = batch or usual_batch, sequence or usual_sequence
        tokens = token_ids(spec.vocabulary, *shape, device)
        any_batch(tokens)
        any_length(tokens)
        calls.append((tokens,))
    return model.train(train).requires_grad_(train), calls


def served(model: GPT) -> nn.Module:
    """The text model for `loadtest`: prefill and decode with a static cache."""
    from torchproof.targets.workloads.gpt_served import ServedGPT

    return ServedGPT(model)
