"""A vision-language model that takes only tensors: one graph for every shape.

It has a vision transformer, a pixel-shuffle projector and a Llama-style decoder with a
tied head. `nanovlm_batches.collate` does the Python work outside the compiled code: it
turns lists of images into tensors, pads, counts placeholders, and marks dynamic sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchproof.targets.workloads import nanovlm_batches, synthetic
from torchproof.targets.workloads.nanovlm_batches import IGNORED, Layout


@dataclass(frozen=True)
class Decoder:
    """The dimensions of the language model."""

    dim: int
    inner: int
    blocks: int
    heads: int
    key_heads: int
    positions: int
    ordinary_tokens: int = 49152
    added_tokens: int = 66

    @property
    def vocabulary(self) -> int:
        return self.ordinary_tokens + self.added_tokens


@dataclass(frozen=True)
class Vision:
    """The dimensions of the vision transformer."""

    dim: int
    inner: int
    blocks: int
    heads: int
    image: int = 512
    patch: int = 16


@dataclass(frozen=True)
class Size:
    """The dimensions of one model. `shuffle`**2 patches become one image token."""

    decoder: Decoder
    vision: Vision
    shuffle: int = 4

    @property
    def image_tokens(self) -> int:
        return (self.vision.image // self.vision.patch // self.shuffle) ** 2

    @property
    def layout(self) -> Layout:
        """The token ids of a batch. The first two added ids are image and padding."""
        ordinary = self.decoder.ordinary_tokens
        return Layout(
            ordinary_tokens=ordinary,
            image_token=ordinary,
            padding_token=ordinary + 1,
            image_tokens=self.image_tokens,
            image=self.vision.image,
        )


SIZES = {
    "tiny": Size(
        Decoder(64, 128, 2, 4, 2, positions=1024, ordinary_tokens=512),
        Vision(64, 128, 2, 4, image=128, patch=8),
        shuffle=2,
    ),
    "debug": Size(Decoder(256, 512, 4, 4, 2, positions=2048), Vision(256, 1024, 4, 4)),
    "large": Size(
        Decoder(768, 2048, 12, 12, 4, positions=2048), Vision(512, 2048, 8, 8)
    ),
    "vanilla": Size(
        Decoder(960, 2560, 32, 15, 5, positions=8192), Vision(768, 3072, 12, 12)
    ),
}


# -- images to tokens ------------------------------------------------------------------


class VisionBlock(nn.Module):
    def __init__(self, size: Vision) -> None:
        super().__init__()
        self.heads = size.heads
        self.attention_norm = nn.LayerNorm(size.dim, eps=1e-6)
        self.qkv = nn.Linear(size.dim, 3 * size.dim)
        self.out = nn.Linear(size.dim, size.dim)
        self.mlp_norm = nn.LayerNorm(size.dim, eps=1e-6)
        self.up = nn.Linear(size.dim, size.inner)
        self.down = nn.Linear(size.inner, size.dim)

    def forward(self, x: Tensor) -> Tensor:
        # (images, patches, 3 * dim) -> 3 x (images, heads, patches, head_dim)
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class VisionTransformer(nn.Module):
    """Images (images, 3, height, width) -> patches (images, patches, dim)."""

    def __init__(self, size: Vision) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, size.dim, size.patch, stride=size.patch)
        count = (size.image // size.patch) ** 2
        self.positions = nn.Parameter(torch.randn(1, count, size.dim) * 0.02)
        self.blocks = nn.ModuleList(VisionBlock(size) for _ in range(size.blocks))
        self.norm = nn.LayerNorm(size.dim, eps=1e-6)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def embed(self, images: Tensor) -> Tensor:
        """The convolution as a matrix product: its patches do not overlap.

        For a convolution over an unbacked batch, Inductor expects a different memory
        layout than the CPU kernel returns.
        """
        weight, bias = self.patches.weight, self.patches.bias
        patch = weight.shape[-1]
        grid = images.unfold(2, patch, patch).unfold(3, patch, patch)
        # (images, 3, rows, columns, patch, patch) -> (images, patches, 3 * patch^2)
        rows = grid.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        return F.linear(rows, weight.flatten(1), bias)


class Projector(nn.Module):
    """Concatenates neighbouring patches, and projects them to the decoder's width."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.shuffle = size.shuffle
        wide = size.vision.dim * size.shuffle**2
        self.project = nn.Linear(wide, size.decoder.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        side, near = int(x.shape[1] ** 0.5), self.shuffle
        grid = x.unflatten(1, (side // near, near, side // near, near))
        return self.project(grid.transpose(2, 3).flatten(3).flatten(1, 2))


# -- tokens to logits ------------------------------------------------------------------


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, eps=1e-5)


class Rotary(nn.Module):
    """Cosines and sines. Longer sequences than trained scale the angles down."""

    def __init__(self, size: Decoder) -> None:
        super().__init__()
        self.head_dim = size.dim // size.heads
        self.trained = size.positions

    def forward(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        positions = torch.arange(length, device=device).float()
        # Use a tensor: a Python branch on the length would need a graph for each side.
        squeeze = ((positions[-1] + 1) / self.trained).clamp(min=1.0)
        angles = torch.outer(positions / squeeze, frequencies(self.head_dim, device))
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()


def frequencies(head_dim: int, device: torch.device) -> Tensor:
    """One frequency for two dimensions of a head, in float32 for every model dtype."""
    return 100_000.0 ** (-torch.arange(0, head_dim, 2, device=device) / head_dim)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates queries or keys (batch, heads, length, head_dim) by their position."""
    first, second = x.chunk(2, dim=-1)
    turned = x * cos + torch.cat((-second, first), dim=-1) * sin
    return turned.to(x.dtype)


class Attention(nn.Module):
    """Causal attention with fewer heads for keys and values than for queries.

    Batches are padded on the right, so no token attends to padding. The causal mask is
    sufficient, and fast kernels support it.
    """

    def __init__(self, size: Decoder) -> None:
        super().__init__()
        self.head_dim = size.dim // size.heads
        self.shared = size.heads // size.key_heads
        keys = size.key_heads * self.head_dim
        self.query = nn.Linear(size.dim, size.dim, bias=False)
        self.key = nn.Linear(size.dim, keys, bias=False)
        self.value = nn.Linear(size.dim, keys, bias=False)
        self.out = nn.Linear(size.dim, size.dim, bias=False)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query = rotate(self.split(self.query(x)), cos, sin)
        key = rotate(self.split(self.key(x)), cos, sin)
        value = self.split(self.value(x))
        key = key.repeat_interleave(self.shared, dim=1)
        value = value.repeat_interleave(self.shared, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, size: Decoder) -> None:
        super().__init__()
        self.gate = nn.Linear(size.dim, size.inner, bias=False)
        self.up = nn.Linear(size.dim, size.inner, bias=False)
        self.down = nn.Linear(size.inner, size.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class DecoderBlock(nn.Module):
    def __init__(self, size: Decoder) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(size.dim)
        self.attention = Attention(size)
        self.mlp_norm = RMSNorm(size.dim)
        self.mlp = MLP(size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


# -- the model -------------------------------------------------------------------------


class Output(NamedTuple):
    """Logits (batch, length, vocabulary), and the loss if there are targets."""

    logits: Tensor
    loss: Tensor | None


class NanoVLM(nn.Module):
    """Tokens with image placeholders, and the images in order -> logits and loss."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.image_token = size.layout.image_token
        self.vision = VisionTransformer(size.vision)
        self.projector = Projector(size)
        self.embedding = nn.Embedding(size.decoder.vocabulary, size.decoder.dim)
        self.rotary: nn.Module = Rotary(size.decoder)
        self.blocks = nn.ModuleList(
            DecoderBlock(size.decoder) for _ in range(size.decoder.blocks)
        )
        self.norm = RMSNorm(size.decoder.dim)
        self.apply(initialise)

    def forward(
        self, tokens: Tensor, images: Tensor, targets: Tensor | None = None
    ) -> Output:
        x = self.embed(tokens, images)
        cos, sin = self.rotary(tokens.shape[1], x.device)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = F.linear(self.norm(x), self.embedding.weight)
        if targets is None:
            return Output(logits, None)
        # Shows torch 2.11 that both inputs have the same length.
        return Output(logits, loss_of(logits, targets.expand_as(tokens)))

    def embed(self, tokens: Tensor, images: Tensor) -> Tensor:
        """Replaces the k-th placeholder of the batch by the k-th image token."""
        x = self.embedding(tokens)
        features = self.projector(self.vision(images)).flatten(0, 1)
        placeholder = tokens == self.image_token
        # Ordinary tokens also read some row, and `where` discards it.
        index = placeholder.flatten().cumsum(0) - 1
        index = index.clamp(min=0).view_as(tokens)
        return torch.where(placeholder.unsqueeze(-1), features[index], x)


def initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding | nn.Conv2d):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
        nn.init.zeros_(module.bias)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED
    )


work = synthetic.tokens


def make(
    size: str = "tiny",
    batch: int | None = None,
    sequence: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
) -> tuple[NanoVLM, list[dict[str, Tensor]]]:
    """Returns the model and calls of many shapes; `batch` and `sequence` fix them."""
    torch.manual_seed(0)
    model = build(NanoVLM, size, device).train(train).requires_grad_(train)
    layout = SIZES[size].layout
    calls = []
    for samples in nanovlm_batches.synthesize(layout, batch, sequence, device=device):
        inputs = nanovlm_batches.collate(layout, samples)
        if not train:
            del inputs["targets"]
        calls.append(inputs)
    return model, calls


def build(kind: type[NanoVLM], size: str, device: str) -> NanoVLM:
    with torch.device(device):
        return kind(SIZES[size]).to(synthetic.number_type(device))
