"""Synthetic samples of text with images, and their collation into tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from torchproof.targets.workloads import synthetic

IGNORED = -100  # a target that the loss ignores
SHAPES = ((4, 128), (3, 200), (1, 80), (2, 512), (1, 333), (4, 96))
TEXT_ONLY = 3  # the index of the batch without images


@dataclass(frozen=True)
class Layout:
    """The meaning of token ids, and the size of an image in tokens and pixels."""

    ordinary_tokens: int
    image_token: int
    padding_token: int
    image_tokens: int
    image: int


@dataclass(frozen=True)
class Sample:
    """Ids (length,) with a run of placeholders for each image (3, side, side)."""

    tokens: Tensor
    images: Sequence[Tensor] = ()


def synthesize(
    layout: Layout, batch: int | None, sequence: int | None, *, device: str
) -> Iterator[list[Sample]]:
    """Batches of several shapes; the longest sample of a batch has the full length.

    Sizes vary between batches unless `batch` or `sequence` is set. One batch is text.
    """
    for number, (rows, length) in enumerate(SHAPES):
        rows, length = batch or rows, sequence or length
        least = layout.image_tokens + 2
        if length < least:
            raise ValueError(f"sequence {length}: an image and its text take {least}")
        lengths = [length - row % 3 * ((length - least) // 3) for row in range(rows)]
        pictured = number != TEXT_ONLY
        yield [_sample(layout, each, pictured, device=device) for each in lengths]


def _sample(layout: Layout, length: int, pictured: bool, *, device: str) -> Sample:
    """One text id, then the placeholders of an image if there is one, then text ids."""
    ids = synthetic.token_ids(layout.ordinary_tokens, 1, length, device).squeeze(0)
    if not pictured:
        return Sample(ids)
    ids[1 : 1 + layout.image_tokens] = layout.image_token
    return Sample(ids, [torch.randn_like(_blank(layout, device))])


def _blank(layout: Layout, device: torch.device | str) -> Tensor:
    kind = synthetic.number_type(torch.device(device).type)
    return torch.zeros(3, layout.image, layout.image, device=device, dtype=kind)


def padded(layout: Layout, samples: Sequence[Sample]) -> dict[str, Tensor]:
    """`tokens` and next-token `targets` (batch, length), padded on the right."""
    longest = max(len(sample.tokens) for sample in samples)
    tokens = torch.stack(
        [
            F.pad(s.tokens, (0, longest - len(s.tokens)), value=layout.padding_token)
            for s in samples
        ]
    )
    targets = F.pad(tokens[:, 1:], (0, 1), value=layout.padding_token)
    targets = targets.masked_fill(targets >= layout.ordinary_tokens, IGNORED)
    return {"tokens": tokens, "targets": targets}


def collate(layout: Layout, samples: Sequence[Sample]) -> dict[str, Tensor]:
    """A batch as tensors only, with marks on the sizes that vary between batches.

    Raises if placeholders and images do not match: in a CUDA kernel, an index out of
    bounds would make the device unusable for the process. A batch without images gets
    one blank image, which no placeholder reads.
    """
    for number, sample in enumerate(samples):
        assert_matching(layout, sample, number)
    inputs = padded(layout, samples)
    blank = _blank(layout, inputs["tokens"].device)
    images = [image for sample in samples for image in sample.images]
    inputs["images"] = torch.stack(images or [blank])
    synthetic.any_batch(inputs["tokens"], inputs["targets"])
    synthetic.any_batch(inputs["images"], name="images")
    synthetic.any_length(inputs["tokens"], inputs["targets"])
    return inputs


def assert_matching(layout: Layout, sample: Sample, number: int) -> None:
    """Raises unless the placeholders of a sample match its images."""
    if sample.tokens.is_meta:
        return
    count = int((sample.tokens == layout.image_token).sum())
    needed = len(sample.images) * layout.image_tokens
    if count != needed:
        raise ValueError(
            f"sample {number} has {count} image placeholders; its"
            f" {len(sample.images)} images need {needed}"
        )
