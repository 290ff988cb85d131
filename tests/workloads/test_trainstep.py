"""The training step: the fixed form trains as the original does."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from torchproof.targets.workloads import trainstep, trainstep_original

# Torch computes Adam's bias corrections in fp32 where it compiles, else in fp64.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}

Trained = tuple[list[Tensor], dict[str, Tensor], object]


def train(workload: ModuleType) -> Trained:
    """Losses and parameters of an epoch in fp64, which autocast leaves alone."""
    step, epoch = workload.make()
    step = workload.TrainStep(step.model.double(), backend="eager")
    with torch.compiler.set_stance("force_eager"):
        losses = [step(inputs, targets) for inputs, targets in epoch]
    return losses, step.model.state_dict(), step


@pytest.fixture(scope="module")
def expected() -> Trained:
    """What the original does without torch.compile."""
    return train(trainstep_original)


def test_fixed_step_trains_as_the_original_does(expected: Trained) -> None:
    losses, parameters, _ = train(trainstep)
    torch.testing.assert_close(losses, expected[0], **CLOSE)
    torch.testing.assert_close(parameters, expected[1], **CLOSE)
    assert losses[-1] < 0.9 * losses[0]


def test_metrics_are_those_that_the_original_logs(expected: Trained) -> None:
    losses, _, step = train(trainstep)
    kept = step.metrics()
    recent = expected[2].losses[-trainstep.WINDOW :]
    assert kept["loss"] == pytest.approx(sum(recent) / len(recent), rel=1e-5)
    assert kept["loss"] != pytest.approx(float(sum(losses)) / len(losses), rel=1e-3)
    total = torch.stack([p.grad.square().sum() for p in step.parameters]).sum().sqrt()
    # The gradients are clipped, the metric is their norm before that.
    assert kept["gradient_norm"] > float(total)
    assert float(total) == pytest.approx(trainstep.MAX_NORM, rel=1e-4)


def test_schedule_on_the_device_is_the_one_in_python() -> None:
    steps = range(2 * trainstep.DECAY_STEPS)
    ours = [float(trainstep.learning_rate(torch.tensor(step))) for step in steps]
    theirs = [trainstep_original.share_of_peak(step) for step in steps]
    assert ours == pytest.approx([trainstep.PEAK_RATE * share for share in theirs])
    assert max(ours) > 5 * min(ours)


def test_sample_does_not_depend_on_its_batch() -> None:
    step, epoch = trainstep.make()
    inputs = epoch[0][0]
    together = step.model(inputs)
    alone = torch.cat([step.model(sample) for sample in inputs.split(1)])
    torch.testing.assert_close(together, alone)


def test_target_is_the_next_token() -> None:
    _, epoch = trainstep.make()
    for inputs, targets in epoch:
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert int(inputs.max()) < trainstep.SIZES["tiny"].decoder.vocabulary
