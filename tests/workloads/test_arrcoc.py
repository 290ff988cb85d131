"""arrcoc: what its scorers measure, and what its loss trains."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from torchproof.targets.workloads import arrcoc, arrcoc_original

SIZE = arrcoc.SIZES["tiny"]
JUDGES = ("knowing.", "balancer.")


def test_scores_are_entropy_edges_and_fit_to_a_query() -> None:
    even, peaked = torch.zeros(1, 1, 8), torch.zeros(1, 1, 8)
    peaked[..., 3] = 50
    entropy = arrcoc.InformationScorer(8)
    assert_close(entropy(even), torch.tensor([[8.0]]).log())
    assert_close(entropy(peaked), torch.zeros(1, 1))
    edges = arrcoc.SalienceScorer(dim=1, side=4)
    nn.init.ones_(edges.channel_mix.weight)
    step = torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(4, 4)
    expected = torch.tensor([0.0, 4.0, 4.0, 0.0]).expand(4, 4)  # Sobel's magnitude
    for picture, edge in ((step, expected), (step.T, expected.T)):
        strength = edges(picture.reshape(1, 16, 1)).view(4, 4)
        assert_close(strength, edge, atol=2e-4, rtol=0)
    fit = arrcoc.QueryContentScorer(64)
    fit.query.weight.data = fit.content.weight.data = torch.eye(64)
    content = torch.randn(2, 16, 64)
    share = fit(content[:, 5:6], content)
    assert_close(share.sum(-1), torch.ones(2, 1))
    assert share.argmax(-1).flatten().tolist() == [5, 5]


def test_most_relevant_patches_are_kept() -> None:
    relevance = torch.rand(3, SIZE.side**2)
    kept = arrcoc.RelevanceAllocator(SIZE)(relevance[..., None], relevance)
    best = relevance.sort(descending=True).values[:, : SIZE.kept]
    assert_close(kept[..., 0], best)


def test_blank_features_have_finite_scores_and_gradients() -> None:
    model = arrcoc.ARRCOC(SIZE)
    features = torch.zeros(2, SIZE.side**2, SIZE.dim, requires_grad=True)
    scores = model.relevance(features, torch.zeros(2, 1, SIZE.dim))
    scores.sum().backward()
    assert torch.equal(scores, torch.zeros_like(scores))
    assert features.grad is not None and features.grad.isfinite().all()


@pytest.mark.parametrize("kind", [arrcoc.ARRCOC, arrcoc_original.ARRCOC])
def test_only_the_original_leaves_its_judges_untrained(kind: type[nn.Module]) -> None:
    model = kind(SIZE)
    model(*arrcoc.samples(SIZE, 3, "cpu")).square().mean().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    untrained = {name for name, gradient in gradients.items() if gradient is None}
    judges = {name for name in gradients if name.startswith(JUDGES)}
    assert untrained == (set() if kind is arrcoc.ARRCOC else judges)
    for gradient in gradients.values():
        assert gradient is None or (gradient.isfinite().all() and gradient.any())
