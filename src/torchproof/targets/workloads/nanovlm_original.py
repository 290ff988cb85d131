"""The model of `nanovlm` before the fixes, with many graph breaks and recompiles.

Its `forward` looks a token id up in the tokenizer, takes lists of images or None,
replaces image tokens with a boolean mask, chooses the rotary scale in Python, and
derives `is_causal` from a length. Its positions have different strides at batch 1.
"""

from __future__ import annotations

import unicodedata

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchproof.targets.workloads import nanovlm, nanovlm_batches
from torchproof.targets.workloads.nanovlm import Output, frequencies, loss_of, rotate
from torchproof.targets.workloads.synthetic import tokens


class Tokenizer:
    """Looks a token up by its normalised text, as tokenizer libraries do."""

    def __init__(self, added: dict[str, int]) -> None:
        self.added = added

    def id_of(self, token: str) -> int:
        return self.added[unicodedata.normalize("NFKC", token)]


class Rotary(nn.Module):
    def __init__(self, size: nanovlm.Decoder) -> None:
        super().__init__()
        self.head_dim = size.dim // size.heads
        self.trained = size.positions

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        turns = frequencies(self.head_dim, positions.device)
        longest = positions.max() + 1
        if longest > self.trained:
            turns = turns / (longest / self.trained)
        # (batch, 1, length, head_dim), where the 1 broadcasts over the heads
        angles = positions.unsqueeze(-1).float() * turns
        angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
        return angles.cos(), angles.sin()


class Attention(nanovlm.Attention):
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query = rotate(self.split(self.query(x)), cos, sin)
        key = rotate(self.split(self.key(x)), cos, sin)
        value = self.split(self.value(x))
        key = key.repeat_interleave(self.shared, dim=1)
        value = value.repeat_interleave(self.shared, dim=1)
        is_causal = query.shape[2] > 1
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class NanoVLM(nanovlm.NanoVLM):
    def __init__(self, size: nanovlm.Size) -> None:
        super().__init__(size)
        self.tokenizer = Tokenizer({"<image>": size.layout.image_token})
        self.rotary = Rotary(size.decoder)
        for block in self.blocks:
            block.attention = Attention(size.decoder)
        self.apply(nanovlm.initialise)

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
        cos, sin = self.rotary(positions)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return Output(logits, None if targets is None else loss_of(logits, targets))


work = tokens


def make(
    size: str = "tiny",
    batch: int | None = None,
    sequence: int | None = None,
    *,
    device: str = "cpu",
    train: bool = False,
) -> tuple[nn.Module, list[dict[str, object]]]:
    """Returns the model and the batches of `nanovlm`, with images as lists or None."""
    torch.manual_seed(0)
    model = nanovlm.build(NanoVLM, size, device).train(train).requires_grad_(train)
    layout = nanovlm.SIZES[size].layout
    calls: list[dict[str, object]] = []
    for samples in nanovlm_batches.synthesize(layout, batch, sequence, device=device):
        inputs = nanovlm_batches.padded(layout, samples)
        images = [list(sample.images) for sample in samples]
        call: dict[str, object] = {
            "tokens": inputs["tokens"],
            "images": images if any(images) else None,
        }
        calls.append(call | ({"targets": inputs["targets"]} if train else {}))
    return model, calls
