"""arrcoc: its scores and its trainable choice of patches, against the original."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from torchproof.targets.workloads import arrcoc, arrcoc_original

SIZE = arrcoc.SIZES["tiny"]
JUDGES = ("knowing.", "balancer.")


def pair() -> tuple[arrcoc.ARRCOC, arrcoc_original.ARRCOC]:
    """Fixed and original with the same weights, in double precision."""
    fixed = arrcoc.make(train=True)[0].double()
    original = arrcoc_original.ARRCOC(SIZE).double()
    original.load_state_dict(fixed.state_dict())
    return fixed, original


def inputs(batch: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    images, queries = arrcoc.samples(SIZE, batch, "cpu")
    return images.double(), queries.double()


def relevance(model: Any, images: Tensor, queries: Tensor) -> Tensor:
    return model.relevance(model.backbone(images), queries)


def gradients(model: torch.nn.Module, batch: int) -> dict[str, Tensor | None]:
    model.zero_grad()
    model(*inputs(batch)).square().mean().backward()
    return {name: weight.grad for name, weight in model.named_parameters()}


# -- the scores ------------------------------------------------------------------------


def test_entropy_is_that_of_the_channels() -> None:
    scorer = arrcoc.InformationScorer(8)
    even, peaked = torch.zeros(1, 1, 8), torch.zeros(1, 1, 8)
    peaked[..., 3] = 50
    assert_close(scorer(even), torch.tensor([[8.0]]).log())
    assert_close(scorer(peaked), torch.zeros(1, 1))


def test_salience_is_the_sobel_magnitude_of_a_step() -> None:
    scorer = arrcoc.SalienceScorer(dim=1, side=4)
    scorer.channel_mix.weight.data.fill_(1.0)
    step = torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(4, 4)
    edge = torch.tensor([0.0, 4.0, 4.0, 0.0]).expand(4, 4)
    for picture, expected in ((step, edge), (step.T, edge.T)):
        strength = scorer(picture.reshape(1, 16, 1)).view(4, 4)
        assert_close(strength, expected, atol=2e-4, rtol=0)


def test_salience_is_the_convolution_of_the_original() -> None:
    features = torch.randn(3, 196, 8, dtype=torch.float64)
    fixed = arrcoc.SalienceScorer(8, side=14).double()
    original = arrcoc_original.SalienceScorer(8, side=14).double()
    original.load_state_dict(fixed.state_dict())
    assert_close(fixed(features), original(features))


def test_patch_like_the_query_gets_most_of_its_attention() -> None:
    scorer = arrcoc.QueryContentScorer(64)
    scorer.query.weight.data = scorer.content.weight.data = torch.eye(64)
    content = torch.randn(2, 16, 64)
    share = scorer(content[:, 5:6], content)
    assert share.shape == (2, 1, 16)
    assert_close(share.sum(-1), torch.ones(2, 1))
    assert share.argmax(-1).flatten().tolist() == [5, 5]


def test_patches_are_those_of_a_convolution() -> None:
    backbone = arrcoc.VisionTransformer(SIZE.vision)
    images, _ = arrcoc.samples(SIZE, 2, "cpu")
    patch = SIZE.vision.patch
    weight = backbone.embedding.weight.view(SIZE.dim, 3, patch, patch)
    expected = F.conv2d(images, weight, backbone.embedding.bias, stride=patch)
    embedded = backbone.embedding(backbone.pixels(images))
    assert_close(embedded, expected.flatten(2).transpose(1, 2))


def test_blank_features_have_finite_scores_and_gradients() -> None:
    model = arrcoc.ARRCOC(SIZE)
    features = torch.zeros(2, SIZE.side**2, SIZE.dim, requires_grad=True)
    queries = torch.zeros(2, 1, SIZE.dim)
    scores = model.relevance(features, queries)
    scores.sum().backward()
    assert torch.equal(scores, torch.zeros_like(scores))
    assert features.grad is not None and features.grad.isfinite().all()


# -- both forms ------------------------------------------------------------------------


def test_only_the_original_depends_on_the_batch() -> None:
    fixed, original = pair()
    images, queries = inputs(5)
    alone = images[:1], queries[:1]
    scores = relevance(fixed, images, queries)
    assert_close(relevance(fixed, *alone)[0], scores[0])
    assert_close(fixed(*alone)[0], fixed(images, queries)[0])
    scores = relevance(original, images, queries)
    assert (scores[0] - relevance(original, *alone)[0]).abs().max() > 0.01


def test_original_and_fixed_agree_on_one_sample() -> None:
    fixed, original = pair()
    sample = inputs(1)
    assert_close(relevance(original, *sample), relevance(fixed, *sample))
    assert_close(original(*sample), fixed(*sample))
    ours, theirs = gradients(fixed, 1), gradients(original, 1)
    for name in ours:
        if name.startswith("realizer."):
            assert_close(ours[name], theirs[name])


def test_only_the_original_leaves_its_judges_untrained() -> None:
    fixed, original = (gradients(model, 3) for model in pair())
    for gradient in fixed.values():
        assert gradient is not None and gradient.isfinite().all() and gradient.any()
    untrained = {name for name, gradient in original.items() if gradient is None}
    assert untrained == {name for name in original if name.startswith(JUDGES)}


def test_training_learns_to_select_other_patches() -> None:
    """Only the judges learn, from an answer that is in one patch of each image."""
    torch.manual_seed(0)
    model = arrcoc.ARRCOC(SIZE)
    features = torch.randn(16, SIZE.side**2, SIZE.dim)
    features[:, :, 0] = 0
    features[torch.arange(16), torch.randint(SIZE.side**2, (16,)), 0] = 5
    queries = torch.randn(16, 1, SIZE.dim)
    judges = [*model.knowing.parameters(), *model.balancer.parameters()]
    optimizer = torch.optim.Adam(judges, lr=1e-2)
    images_answered = []
    for _ in range(20):
        kept = model.allocator(features, model.relevance(features, queries))
        images_answered.append(int((kept[..., 0].amax(1) == 5).sum()))
        optimizer.zero_grad()
        (-kept[..., 0].mean()).backward()
        optimizer.step()
    assert images_answered[0] < 4
    assert images_answered[-1] == 16
