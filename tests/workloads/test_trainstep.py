"""The training step: the fixed form trains as the original does."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from torchproof.targets.workloads import trainstep, trainstep_original

# Torch computes Adam's bias corrections in fp32 where it compiles, else in fp64.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def train(workload: ModuleType) -> tuple[list[Tensor], dict[str, Tensor], Any]:
    """Losses, parameters and the step of an epoch in fp64, which autocast ignores."""
    step, epoch = workload.make()
    step = workload.TrainStep(step.model.double())
    with torch.compiler.set_stance("force_eager"):
        losses = [step(inputs, targets) for inputs, targets in epoch]
    return losses, step.model.state_dict(), step


def test_fixed_step_trains_and_logs_as_the_original_does() -> None:
    theirs, their_parameters, original = train(trainstep_original)
    losses, parameters, step = train(trainstep)
    torch.testing.assert_close(losses, theirs, **CLOSE)
    torch.testing.assert_close(parameters, their_parameters, **CLOSE)
    assert losses[-1] < 0.9 * losses[0]
    metrics = step.metrics()
    recent = original.losses[-trainstep.WINDOW :]
    assert metrics["loss"] == pytest.approx(sum(recent) / len(recent), rel=1e-5)
    assert metrics["loss"] != pytest.approx(float(sum(losses)) / len(losses), rel=1e-3)
    total = torch.stack([p.grad.square().sum() for p in step.parameters]).sum().sqrt()
    # The gradients are clipped, the metric is their norm before that.
    assert metrics["gradient_norm"] > float(total)
    assert float(total) == pytest.approx(trainstep.MAX_NORM, rel=1e-4)


def test_schedule_on_the_device_is_the_one_in_python() -> None:
    steps = range(2 * trainstep.DECAY_STEPS)
    ours = [float(trainstep.learning_rate(torch.tensor(step))) for step in steps]
    theirs = [trainstep_original.share_of_peak(step) for step in steps]
    assert ours == pytest.approx([trainstep.PEAK_RATE * share for share in theirs])
    assert max(ours) > 5 * min(ours)


def test_target_is_the_next_token() -> None:
    _, epoch = trainstep.make()
    for inputs, targets in epoch:
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert int(inputs.max()) < trainstep.SIZES["tiny"].decoder.vocabulary
