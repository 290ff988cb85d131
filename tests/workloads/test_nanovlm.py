"""nanovlm: where the images of a batch go, and batches that are refused."""

from __future__ import annotations

import pytest
import torch

from torchproof.targets.workloads import (
    nanovlm,
    nanovlm_original,
)
from torchproof.targets.workloads.nanovlm import Sample, collate

SIZE = nanovlm.SIZES["tiny"]


def two_samples() -> list[Sample]:
    """Of different lengths, with an image each."""
    return next(nanovlm.synthesize(SIZE, 2, 150, device="cpu"))


def test_kth_placeholder_gets_the_kth_image_token() -> None:
    torch.manual_seed(0)
    model, _ = nanovlm.make()
    inputs = collate(SIZE, two_samples())
    with torch.no_grad():
        embedded = model.embed(inputs["tokens"], inputs["images"])
        seen = model.projector(model.vision(inputs["images"]))
    torch.testing.assert_close(embedded[1, 1 : 1 + SIZE.image_tokens], seen[1])
    text = model.embedding(inputs["tokens"])
    assert torch.equal(embedded[:, 0], text[:, 0])


@pytest.mark.parametrize("change", [-1, 1])
def test_placeholders_without_their_image_are_refused(change: int) -> None:
    batch = two_samples()
    end = 1 + SIZE.image_tokens
    batch[1].tokens[min(end, end + change)] = SIZE.image_token if change > 0 else 0
    with pytest.raises(ValueError, match=r"\bsample 1\b.*\bimage placeholders"):
        collate(SIZE, batch)


def test_shape_applies_to_every_call_and_has_a_minimum() -> None:
    _, calls = nanovlm.make(batch=2, sequence=100)
    assert {tuple(call["tokens"].shape) for call in calls} == {(2, 100)}
    _, calls = nanovlm_original.make(batch=1, sequence=100)
    assert {tuple(call["tokens"].shape) for call in calls} == {(1, 100)}
    with pytest.raises(ValueError, match="sequence 40"):
        nanovlm.make(sequence=40)
