"""A gain is measured where there is one, and nothing is left changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchproof.runtime import speed_trial
from torchproof.runtime.speed_trial import SpeedTrial, measured


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.seen: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x + torch.rand(1)))


def repeated(call: Callable[..., Any], times: int) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        for _ in range(times - 1):
            call(*args, **kwargs)
        return call(*args, **kwargs)

    return run


def test_a_clear_gain_pays_and_leaves_the_model_alone() -> None:
    model, x = Net(), torch.randn(32, 64)
    model.linear.weight.grad = torch.ones(64, 64)
    before = [t.clone() for t in (*model.parameters(), *model.buffers(), x)]
    chance, made = torch.get_rng_state(), []

    def make(module: nn.Module | None) -> tuple[Any, Any]:
        made.append(module)
        assert module is not None
        return repeated(module.forward, 20), module.forward

    # A busy machine may hide it once: the interval is wide then, nothing is claimed.
    for _ in range(5):
        found = measured(make, (x,), {}, owner=model, seconds=1)
        if found.pays(0.05):
            break
    assert found.gain > 1, found
    assert found.low is not None and found.high is not None
    assert found.low < found.gain < found.high
    assert found.pays(0.05)
    assert not found.pays(1000)
    assert found.where == "copy" and made[0] is not model
    after = [*model.parameters(), *model.buffers(), x]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert torch.equal(model.linear.weight.grad, torch.ones(64, 64))
    assert model.linear.bias.grad is None
    assert torch.equal(torch.get_rng_state(), chance)
    json.dumps(found.to_json())
    assert str(found).startswith("+")


@pytest.mark.slow
def test_the_same_twice_and_a_loss_do_not_pay() -> None:
    x = torch.randn(64, 64)

    def once(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    found = measured(lambda _: (once, once), (x,), {}, seconds=1)
    assert not found.pays(0.5), found
    slower = measured(lambda _: (once, repeated(once, 20)), (x,), {}, seconds=1)
    assert slower.gain < 0
    assert not slower.pays(0.0)


def test_in_place_where_no_copy_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Net(), torch.randn(32, 64)
    monkeypatch.setattr(speed_trial, "free_bytes", lambda device: 10)
    before = [t.clone() for t in (*model.parameters(), *model.buffers())]

    def make(module: nn.Module | None) -> tuple[Any, Any]:
        assert module is model
        return model.forward, model.forward

    found = measured(make, (x,), {}, owner=model, seconds=0.3)
    assert found.where == "in place"
    lacks = speed_trial.lack_of_memory(model)
    assert lacks is not None and lacks in found.notes[0]
    after = [*model.parameters(), *model.buffers()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_what_fails_is_raised_with_the_state_put_back() -> None:
    model, x = Net(), torch.ones(32, 64)
    model.refuses = (each for each in ())  # a generator cannot be copied

    def fails(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        measured(lambda m: (model.forward, fails), (x,), {}, owner=model, seconds=1)
    assert x.sum() == x.numel()
    assert model.norm.num_batches_tracked == 0


def test_backward_is_part_of_a_step_only_with_gradients() -> None:
    passes = []

    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            passes.append(1)
            return gradient

    x = torch.ones(3, requires_grad=True)
    measured(lambda _: (Seen.apply, Seen.apply), (x,), {}, seconds=0.01)
    assert passes and x.grad is None
    passes.clear()
    with torch.no_grad():
        measured(lambda _: (Seen.apply, Seen.apply), (x,), {}, seconds=0.01)
    assert not passes


def test_long_steps_end_in_time_without_an_interval() -> None:
    calls = []

    def slow() -> None:
        calls.append(1)
        time.sleep(0.05)

    found = measured(lambda _: (slow, slow), (), {}, seconds=0.01)
    assert len(calls) < 20
    assert found.low is None and found.high is None
    assert not found.pays(-1)


def test_the_threshold_and_the_sign_must_both_be_shown() -> None:
    def of(gain: float, low: float | None) -> SpeedTrial:
        return SpeedTrial(2.0, 1.0, gain, low, 2.0, 50, "copy")

    assert of(0.10, 0.02).pays(0.05)
    assert not of(0.04, 0.02).pays(0.05)
    assert not of(0.10, -0.01).pays(0.05)
    assert not of(0.10, None).pays(0.05)
