"""nanovlm: its batches, and the answers of the original."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from torchproof.targets.workloads import nanovlm, nanovlm_original
from torchproof.targets.workloads.nanovlm_batches import Sample, collate

SIZE = nanovlm.SIZES["tiny"]
LAYOUT = SIZE.layout


def samples(rows: int, length: int, images: int = 1) -> list[Sample]:
    """Samples of falling length, each with so many images."""
    answer = []
    for row in range(rows):
        ids = torch.randint(LAYOUT.ordinary_tokens, (length - row % 4 * 3,))
        ids[1 : 1 + images * LAYOUT.image_tokens] = LAYOUT.image_token
        side = LAYOUT.image
        answer.append(Sample(ids, [torch.randn(3, side, side) for _ in range(images)]))
    return answer


def twins(size: nanovlm.Size = SIZE) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Fixed and original with the same weights."""
    fixed, original = nanovlm.NanoVLM(size), nanovlm_original.NanoVLM(size)
    original.load_state_dict(fixed.state_dict())
    return fixed, original


def both_forms(batch: list[Sample]) -> tuple[dict[str, Tensor], dict[str, object]]:
    return collate(LAYOUT, batch), nanovlm_original.listed(LAYOUT, batch)


@pytest.mark.parametrize("images", [0, 2])
def test_original_and_fixed_agree(images: int) -> None:
    torch.manual_seed(images)
    fixed, original = twins()
    tensors, lists = both_forms(samples(3, 150, images))
    ours, theirs = fixed(**tensors), original(**lists)
    torch.testing.assert_close(ours.logits, theirs.logits)
    torch.testing.assert_close(ours.loss, theirs.loss)
    ours.loss.backward()
    theirs.loss.backward()
    gradients = dict(original.named_parameters())
    for name, parameter in fixed.named_parameters():
        other = gradients[name].grad
        if other is None:  # the original leaves out the vision of a batch of text
            assert images == 0 and not parameter.grad.any()
        else:
            torch.testing.assert_close(parameter.grad, other, rtol=1e-4, atol=1e-6)


def test_original_and_fixed_agree_beyond_trained_positions() -> None:
    torch.manual_seed(0)
    short = replace(SIZE, decoder=replace(SIZE.decoder, positions=64))
    fixed, original = twins(short)
    tensors, lists = both_forms(samples(2, 150))
    del tensors["targets"], lists["targets"]
    with torch.no_grad():
        squeezed = fixed(**tensors).logits
        torch.testing.assert_close(squeezed, original(**lists).logits)
        fixed.rotary.trained = SIZE.decoder.positions
        assert not torch.allclose(squeezed, fixed(**tensors).logits)


def test_sample_does_not_depend_on_its_batch() -> None:
    torch.manual_seed(0)
    model, _ = nanovlm.make()
    batch = samples(4, 130)
    together = model(**collate(LAYOUT, batch)).logits
    for row, sample in enumerate(batch):
        alone = model(**collate(LAYOUT, [sample])).logits[0]
        torch.testing.assert_close(together[row, : len(alone)], alone)


def test_kth_placeholder_gets_the_kth_image_token() -> None:
    torch.manual_seed(0)
    model, _ = nanovlm.make()
    batch = samples(2, 150, images=2)
    inputs = collate(LAYOUT, batch)
    with torch.no_grad():
        embedded = model.embed(inputs["tokens"], inputs["images"])
        seen = model.projector(model.vision(inputs["images"]))
    torch.testing.assert_close(embedded[1, 1 : 1 + LAYOUT.image_tokens], seen[2])
    text = model.embedding(inputs["tokens"])
    assert torch.equal(embedded[:, 0], text[:, 0])


@pytest.mark.parametrize("change", [-1, 1])
def test_placeholders_without_their_image_are_refused(change: int) -> None:
    batch = samples(2, 120)
    end = 1 + LAYOUT.image_tokens
    batch[1].tokens[min(end, end + change)] = LAYOUT.image_token if change > 0 else 0
    with pytest.raises(ValueError, match=r"\bsample 1\b.*\bimage placeholders"):
        collate(LAYOUT, batch)


def test_shape_applies_to_every_call_and_has_a_minimum() -> None:
    _, calls = nanovlm.make(batch=2, sequence=100)
    assert {tuple(call["tokens"].shape) for call in calls} == {(2, 100)}
    _, calls = nanovlm_original.make(batch=1, sequence=100)
    assert {tuple(call["tokens"].shape) for call in calls} == {(1, 100)}
    with pytest.raises(ValueError, match="sequence 40"):
        nanovlm.make(sequence=40)
