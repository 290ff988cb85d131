"""A step with FP8 weights is recorded, and its weights are watched like others."""

from __future__ import annotations

import pytest
import torch

import torchproof
from torchproof.targets.workloads import gpt

SPEC = gpt.Size(layers=2, dim=32, heads=2, vocabulary=64)
IDS = torch.arange(24).view(2, 12)


@pytest.mark.parametrize(
    "strategy", ["eager", pytest.param("regional", marks=pytest.mark.slow)]
)
def test_a_step_with_fp8_weights_is_recorded(strategy: str) -> None:
    model = gpt.GPT(SPEC, fp8=True).requires_grad_(False)
    right = model(IDS)
    step = torchproof.graph(model, strategy=strategy)
    with torch.no_grad():
        for _ in range(3):
            ours = step(IDS)
    status = step.status()
    assert status.recordings == 1 and not status.stops
    # Other roundings before an input is quantised can move it to the next FP8 number.
    assert (ours - right).norm() < 0.01 * right.norm()


def test_new_scales_are_seen_by_the_next_replay() -> None:
    model = gpt.GPT(SPEC, fp8=True).requires_grad_(False)
    step = torchproof.graph(model, strategy="eager")
    before = step(IDS).clone()
    model.get_buffer("blocks.0.attention.out.weight_scales").mul_(2)
    assert torch.equal(step(IDS), model(IDS))
    assert not torch.equal(step(IDS), before)
