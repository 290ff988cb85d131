"""The training step: what is planted is found, and the cured form trains the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor
from workloads.conftest import Found, place, places

from torchproof.records.run import Observation
from torchproof.targets.workloads import WORKLOADS, trainstep, trainstep_original

ORIGINAL = "trainstep-original"
# Torch computes Adam's bias corrections in fp32 where it compiles, else in fp64.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}

Trained = tuple[list[Tensor], dict[str, Tensor], object]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def train(workload: ModuleType, backend: str | None) -> Trained:
    """Losses and parameters of an epoch in fp64, which autocast leaves alone."""
    step, epoch = workload.make()
    step = workload.TrainStep(step.model.double(), backend=backend or "eager")
    with torch.compiler.set_stance("default" if backend else "force_eager"):
        losses = [step(inputs, targets) for inputs, targets in epoch]
    return losses, step.model.state_dict(), step


@pytest.fixture(scope="module")
def expected() -> Trained:
    """What the original does without torch.compile."""
    return train(trainstep_original, None)


# -- the defects of the original -------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [
        ("graph_break", "GB105", "self.optimizer.zero_grad()"),
        ("graph_break", "GB110", "loss.backward()"),
        ("graph_break", "GB105", "self.optimizer.step()"),
        ("graph_break", "GB105", "self.scheduler.step()"),
        ("graph_break", "GB101", "loss_value = loss.item()"),
        ("graph_break", "GB101", "gradient_norm = norm.item()"),
        ("graph_break", "GB105", "rate = self.scheduler.get_last_lr()[0]"),
        ("graph_break", "GB104", "logger.info("),
        ("recompile", "RC218", "self.optimizer.step()"),
        ("recompile", "RC212", "self.losses.append(loss_value)"),
        ("recompile_limit", "RC290", "self.losses.append(loss_value)"),
        ("recompile", "RC202", "def _train_step("),
    ],
)
def test_a_planted_defect_is_found_at_its_line(
    found: Found, kind: str, code: str, line: str
) -> None:
    same_code = [finding for finding in found(ORIGINAL) if finding.code == code]
    assert place(ORIGINAL, line) in places(same_code, kind)


def test_nothing_is_found_outside_of_the_step(found: Found) -> None:
    functions = {finding.function for finding in found(ORIGINAL)}
    assert functions == {"TrainStep._train_step"}


def test_a_float_rate_is_advised_to_be_a_tensor(found: Found) -> None:
    [rate] = [finding for finding in found(ORIGINAL) if finding.code == "RC218"]
    assert "lr=torch.tensor" in rate.fix
    assert rate.count == 1  # a second value makes torch take it for dynamic


# -- the cured form --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("train", [False, True])
def test_the_cured_step_is_two_graphs_and_nothing_is_found(
    observed: Callable[..., Observation], found: Found, train: bool
) -> None:
    options = {"train": True} if train else {}
    assert found("trainstep", **options) == []
    observation = observed("trainstep", **options)
    graphs = sum(event.kind == "graph" for event in observation.events)
    assert (graphs, observation.compiled_calls) == (2, 12)


@pytest.mark.parametrize(
    "backend", [None, pytest.param("aot_eager", marks=pytest.mark.slow)]
)
def test_the_cured_step_trains_as_the_original_does(
    expected: Trained, backend: str | None
) -> None:
    losses, parameters, _ = train(trainstep, backend)
    torch.testing.assert_close(losses, expected[0], **CLOSE)
    torch.testing.assert_close(parameters, expected[1], **CLOSE)
    assert losses[-1] < 0.9 * losses[0]


def test_the_metrics_are_those_that_the_original_logs(expected: Trained) -> None:
    losses, _, step = train(trainstep, None)
    kept = step.metrics()
    recent = expected[2].losses[-trainstep.WINDOW :]
    assert kept["loss"] == pytest.approx(sum(recent) / len(recent), rel=1e-5)
    assert kept["loss"] != pytest.approx(float(sum(losses)) / len(losses), rel=1e-3)
    total = torch.stack([p.grad.square().sum() for p in step.parameters]).sum().sqrt()
    # The gradients are clipped, the metric is their norm before that.
    assert kept["gradient_norm"] > float(total)
    assert float(total) == pytest.approx(trainstep.MAX_NORM, rel=1e-4)


def test_the_schedule_on_the_device_is_the_one_in_python() -> None:
    steps = range(2 * trainstep.DECAY_STEPS)
    ours = [float(trainstep.learning_rate(torch.tensor(step))) for step in steps]
    theirs = [trainstep_original.share_of_peak(step) for step in steps]
    assert ours == pytest.approx([trainstep.PEAK_RATE * share for share in theirs])
    assert max(ours) > 5 * min(ours)


def test_a_sample_does_not_depend_on_its_batch() -> None:
    step, epoch = trainstep.make()
    inputs = epoch[0][0]
    together = step.model(inputs)
    alone = torch.cat([step.model(sample) for sample in inputs.split(1)])
    torch.testing.assert_close(together, alone)


# -- both ------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", [trainstep, trainstep_original])
def test_the_registry_knows_the_sizes(workload: ModuleType) -> None:
    name = "trainstep" if workload is trainstep else ORIGINAL
    counted = {}
    for size in workload.SIZES:
        step, epoch = workload.make(size, device="meta")
        counted[size] = sum(p.numel() for p in step.model.parameters())
        assert {tensor.device.type for batch in epoch for tensor in batch} == {"meta"}
    assert counted == WORKLOADS[name].sizes


def test_both_start_from_the_same_weights_and_data() -> None:
    (cured, epoch), (original, same) = trainstep.make(), trainstep_original.make()
    torch.testing.assert_close(
        cured.model.state_dict(), original.model.state_dict(), rtol=0, atol=0
    )
    torch.testing.assert_close(epoch, same, rtol=0, atol=0)
    original.model.load_state_dict(cured.model.state_dict(), strict=True)


def test_batch_and_sequence_can_be_chosen() -> None:
    for workload in (trainstep, trainstep_original):
        _, epoch = workload.make("tiny", 6, 24)
        assert {tuple(inputs.shape) for inputs, _ in epoch} == {(6, 24)}


def test_every_target_is_the_token_that_follows() -> None:
    _, epoch = trainstep.make()
    for inputs, targets in epoch:
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert int(inputs.max()) < trainstep.SIZES["tiny"].vocabulary
