"""The model of `nanovlm` before the fixes, with many graph breaks and recompiles.

Its `forward` looks a token id up in the tokenizer, takes lists of images or None,
replaces image tokens with a boolean mask, chooses the rotary scale in Python, and
derives `is_causal` from a length. Its positions have different strides at batch 1.
"""

from __future__ import annotations

import unicodedata

import torch
import torch.nn.functional as F
from torch import Tensor

from torchproof.records import Keywords
from torchproof.targets.workloads import nanovlm
from torchproof.targets.workloads.layers import RotaryAttention, Rotation
from torchproof.targets.workloads.nanovlm import Output, Sample, Size, loss_of


class Tokenizer:
    """Looks a token up by its normalised text, as tokenizer libraries do."""

    def __init__(self, added: dict[str, int]) -> None:
        self.added = added

    def id_of(self, token: str) -> int:
        return self.added[unicodedata.normalize("NFKC", token)]


class Rotary(nanovlm.Rotary):
    def forward(self, positions: Tensor) -> Rotation:  # type: ignore[override]
        turns = nanovlm.frequencies(self.head_dim, positions.device)
        longest = positions.max() + 1
        if longest > self.trained:
            turns = turns / (longest / self.trained)
        # (batch, 1, length, head_dim / 2), where the 1 broadcasts over the heads
        angles = (positions.unsqueeze(-1).float() * turns).unsqueeze(1)
        return angles.cos(), angles.sin()


class Attention(RotaryAttention):
    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        is_causal = query.shape[2] > 1
        return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


class NanoVLM(nanovlm.NanoVLM):
    attention = Attention
    rotary_positions = Rotary

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.tokenizer = Tokenizer({"<image>": size.image_token})

    def forward(  # type: ignore[override]
        self,
        tokens: Tensor,
        images: list[list[Tensor]] | None,
        targets: Tensor | None = None,
    ) -> Output:
        x = self.embedding(tokens)
        if images is not None:
            pictures = torch.stack([image for sample in images for image in sample])
            features = self.projector(self.vision(pictures)).flatten(0, 1)
            image_token = self.tokenizer.id_of("<image>")
            mask = tokens == image_token
            places = x[mask]
            x[mask] = features.view_as(places)
        batch, length = tokens.shape
        positions = torch.arange(length, device=tokens.device).expand(batch, -1)
        logits = self.decode(x, self.rotary(positions))
        return Output(logits, None if targets is None else loss_of(logits, targets))


def listed(size: Size, samples: list[Sample]) -> Keywords:
    """A batch with its images as lists, or None if there are none."""
    images = [list(sample.images) for sample in samples]
    inputs = nanovlm.padded(size, samples)
    return {**inputs, "images": images if any(images) else None}


def make(
    size: str = "tiny",
    batch: int | None = None,
    sequence: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
) -> tuple[nanovlm.NanoVLM, list[Keywords]]:
    """Returns the model and the batches of `nanovlm`, with images as lists or None."""
    shape = batch, sequence
    return nanovlm.built(NanoVLM, listed, size, shape, device=device, train=train)
