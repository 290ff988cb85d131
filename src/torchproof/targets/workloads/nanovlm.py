"""A vision-language model that takes only tensors: one graph for every shape.

It has a vision transformer, a pixel-shuffle projector and a Llama-style decoder with a
tied head. `collate` does the Python work outside the compiled code: it turns lists of
images into tensors, pads, counts placeholders, and marks dynamic sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchproof.records import Keywords
from torchproof.targets.workloads import synthetic
from torchproof.targets.workloads.layers import (
    RotaryAttention,
    RotaryBlock,
    Rotation,
    Vision,
    VisionTransformer,
)

IGNORED = -100  # a target that the loss ignores
SHAPES = ((4, 128), (3, 200), (1, 80), (2, 512), (1, 333), (4, 96))
TEXT_ONLY = 3  # the index of the batch without images


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
class Size:
    """The dimensions of one model. `shuffle`**2 patches become one image token."""

    decoder: Decoder
    vision: Vision
    shuffle: int = 4

    @property
    def image_tokens(self) -> int:
        return (self.vision.side // self.shuffle) ** 2

    @property
    def image_token(self) -> int:
        """The first added id: the placeholder of a part of an image."""
        return self.decoder.ordinary_tokens

    @property
    def padding_token(self) -> int:
        return self.decoder.ordinary_tokens + 1


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
        return angles.cos(), angles.sin()


def frequencies(head_dim: int, device: torch.device) -> Tensor:
    """One frequency for two dimensions of a head, in float32 for every model dtype."""
    return 100_000.0 ** (-torch.arange(0, head_dim, 2, device=device) / head_dim)


class GatedMLP(nn.Module):
    def __init__(self, size: Decoder) -> None:
        super().__init__()
        self.gate = nn.Linear(size.dim, size.inner, bias=False)
        self.up = nn.Linear(size.dim, size.inner, bias=False)
        self.down = nn.Linear(size.inner, size.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Output(NamedTuple):
    """Logits (batch, length, vocabulary), and the loss if there are targets."""

    logits: Tensor
    loss: Tensor | None


class NanoVLM(nn.Module):
    """Tokens with image placeholders, and the images in order -> logits and loss."""

    attention = RotaryAttention
    rotary_positions = Rotary

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.image_token = size.image_token
        self.vision = VisionTransformer(size.vision, gelu="tanh")
        self.projector = Projector(size)
        decoder, dim = size.decoder, size.decoder.dim
        self.embedding = nn.Embedding(decoder.vocabulary, dim)
        self.rotary = self.rotary_positions(decoder)
        self.blocks = nn.ModuleList(
            RotaryBlock(
                self.attention(dim, decoder.heads, decoder.key_heads),
                GatedMLP(decoder),
                lambda: nn.RMSNorm(dim, eps=1e-5),
            )
            for _ in range(decoder.blocks)
        )
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.apply(initialise)

    def forward(
        self, tokens: Tensor, images: Tensor, targets: Tensor | None = None
    ) -> Output:
        x = self.embed(tokens, images)
        logits = self.decode(x, self.rotary(tokens.shape[1], x.device))
        if targets is None:
            return Output(logits, None)
        # Shows torch 2.11 that both inputs have the same length.
        return Output(logits, loss_of(logits, targets.expand_as(tokens)))

    def decode(self, x: Tensor, turn: Rotation) -> Tensor:
        for block in self.blocks:
            x = block(x, turn)
        return F.linear(self.norm(x), self.embedding.weight)

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
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED
    )


# -- batches ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """Ids (length,) with a run of placeholders for each image (3, side, side)."""

    tokens: Tensor
    images: Sequence[Tensor] = ()


def synthesize(
    size: Size, batch: int | None, sequence: int | None, *, device: str
) -> Iterator[list[Sample]]:
    """Batches of several shapes; the longest sample of a batch has the full length.

    Sizes vary between batches unless `batch` or `sequence` is set. One batch is text.
    """
    for number, (rows, length) in enumerate(SHAPES):
        rows, length = batch or rows, sequence or length
        least = size.image_tokens + 2
        if length < least:
            raise ValueError(f"sequence {length}: an image and its text take {least}")
        lengths = [length - row % 3 * ((length - least) // 3) for row in range(rows)]
        pictured = number != TEXT_ONLY
        yield [_sample(size, each, pictured, device=device) for each in lengths]


def _sample(size: Size, length: int, pictured: bool, *, device: str) -> Sample:
    """One text id, then the placeholders of an image if there is one, then text ids."""
    ids = synthetic.token_ids(size.decoder.ordinary_tokens, 1, length, device).squeeze(
        0
    )
    if not pictured:
        return Sample(ids)
    ids[1 : 1 + size.image_tokens] = size.image_token
    return Sample(ids, [torch.randn_like(_blank(size, device))])


def _blank(size: Size, device: torch.device | str) -> Tensor:
    kind = synthetic.number_type(torch.device(device).type)
    return torch.zeros(
        3, size.vision.image, size.vision.image, device=device, dtype=kind
    )


def padded(size: Size, samples: Sequence[Sample]) -> dict[str, Tensor]:
    """`tokens` and next-token `targets` (batch, length), padded on the right."""
    longest = max(len(sample.tokens) for sample in samples)
    tokens = torch.stack(
        [
            F.pad(s.tokens, (0, longest - len(s.tokens)), value=size.padding_token)
            for s in samples
        ]
    )
    targets = F.pad(tokens[:, 1:], (0, 1), value=size.padding_token)
    targets = targets.masked_fill(targets >= size.decoder.ordinary_tokens, IGNORED)
    return {"tokens": tokens, "targets": targets}


def collate(size: Size, samples: Sequence[Sample]) -> dict[str, Tensor]:
    """A batch as tensors only, with marks on the sizes that vary between batches.

    Raises if placeholders and images do not match: in a CUDA kernel, an index out of
    bounds would make the device unusable for the process. A batch without images gets
    one blank image, which no placeholder reads.
    """
    for number, sample in enumerate(samples):
        assert_matching(size, sample, number)
    inputs = padded(size, samples)
    blank = _blank(size, inputs["tokens"].device)
    images = [image for sample in samples for image in sample.images]
    inputs["images"] = torch.stack(images or [blank])
    synthetic.any_batch(inputs["tokens"], inputs["targets"])
    synthetic.any_batch(inputs["images"], name="images")
    synthetic.any_length(inputs["tokens"], inputs["targets"])
    return inputs


def assert_matching(size: Size, sample: Sample, number: int) -> None:
    """Raises unless the placeholders of a sample match its images."""
    if sample.tokens.is_meta:
        return
    count = int((sample.tokens == size.image_token).sum())
    needed = len(sample.images) * size.image_tokens
    if count != needed:
        raise ValueError(
            f"sample {number} has {count} image placeholders; its"
            f" {len(sample.images)} images need {needed}"
        )


def make(
    size: str = "tiny",
    batch: int | None = None,
    sequence: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
) -> tuple[NanoVLM, list[Keywords]]:
    """Returns the model and calls of many shapes; `batch` and `sequence` fix them."""
    return built(NanoVLM, collate, size, (batch, sequence), device=device, train=train)


def built(
    kind: type[NanoVLM],
    collate: Callable[[Size, list[Sample]], Keywords],
    size: str,
    shape: tuple[int | None, int | None],
    *,
    device: str,
    train: bool,
) -> tuple[NanoVLM, list[Keywords]]:
    torch.manual_seed(0)
    spec = SIZES[size]
    calls: list[Keywords] = []
    with torch.device(device):
        model = kind(spec).to(synthetic.number_type(device))
    for samples in synthesize(spec, *shape, device=device):
        inputs = collate(spec, samples)
        left_out = () if train else ("targets",)
        calls.append({k: v for k, v in inputs.items() if k not in left_out})
    return model.train(train).requires_grad_(train), calls
