"""Optimizers that a step reaches: whatever they read counts, at any depth."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime.cudagraph.graphed_step import Graphed


class Custom(torch.optim.Optimizer):
    """Reads numbers from everywhere an optimizer can keep them."""

    rate = 1.0

    def __init__(self, parameters: Any) -> None:
        defaults = {"lr": 0.1, "decay": 0.01, "betas": [1.0, 0.5], "floor": None}
        super().__init__(parameters, defaults)
        self.beta = 0.5
        self.config = SimpleNamespace(scale=1.0, inner={"bias": [0.25]})

    def scaled(self, gradient: Tensor) -> Tensor:
        config = self.config
        return gradient * self.rate * config.scale + config.inner["bias"][0]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    continue
                state = self.state[each]
                if not state:
                    state["mean"] = torch.zeros_like(each)
                    state["power"] = 1.0
                state["mean"].mul_(self.beta).add_(self.scaled(each.grad))
                if group["floor"] is not None:
                    state["mean"].clamp_(min=group["floor"])
                change = state["mean"] * state["power"] * sum(group["betas"])
                each.sub_((change + each * group["decay"]) * group["lr"])


class Trainer:
    """A model with its optimizer, and a twin of them would do the same."""

    def __init__(self, make: Callable[[Any], torch.optim.Optimizer]) -> None:
        torch.manual_seed(1)
        self.net = nn.Linear(3, 2)
        self.optimizer = make(self.net.parameters())
        self.handles: list[Any] = []

    def step(self, x: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.net(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss


Change = Callable[[Trainer], Any]


def group_of(trainer: Trainer) -> dict[str, Any]:
    group: dict[str, Any] = trainer.optimizer.param_groups[0]
    return group


def state_of(trainer: Trainer) -> dict[str, Any]:
    state: dict[str, Any] = trainer.optimizer.state[trainer.net.weight]
    return state


def replace_optimizer(trainer: Trainer) -> None:
    trainer.optimizer = Custom(trainer.net.parameters())
    group_of(trainer)["lr"] = 0.3


def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
    with torch.no_grad():
        optimizer.param_groups[0]["params"][0].mul_(0.5)


def freeze_bias(trainer: Trainer) -> None:
    group_of(trainer)["params"] = [trainer.net.weight]


def split_groups(trainer: Trainer) -> None:
    bias = group_of(trainer)["params"].pop()
    trainer.optimizer.add_param_group({"params": [bias], "lr": 0.5})


CUSTOM: dict[str, Change] = {
    "attribute": lambda t: setattr(t.optimizer, "beta", 0.9),
    "attribute of an attribute": lambda t: setattr(t.optimizer.config, "scale", 3.0),
    "replaced attribute": lambda t: setattr(
        t.optimizer, "config", SimpleNamespace(scale=2.0, inner={"bias": [0.0]})
    ),
    "list in a dict in an attribute": lambda t: t.optimizer.config.inner[
        "bias"
    ].__setitem__(0, 1.0),
    "attribute of the instance over the class": lambda t: setattr(
        t.optimizer, "rate", 4.0
    ),
    "attribute of the class": lambda t: setattr(Custom, "rate", 4.0),
    "method of the class": lambda t: setattr(Custom, "scaled", lambda self, g: -g),
    "method of the instance": lambda t: setattr(t.optimizer, "scaled", lambda g: g * 7),
    "step of the instance": lambda t: setattr(t.optimizer, "step", lambda: None),
    "learning rate": lambda t: group_of(t).update(lr=0.7),
    "learning rate in a tensor": lambda t: group_of(t).update(lr=torch.tensor(0.7)),
    "hyperparameter": lambda t: group_of(t).update(decay=0.5),
    "list as a hyperparameter": lambda t: group_of(t)["betas"].append(1.0),
    "tensor as a hyperparameter": lambda t: group_of(t).update(
        floor=torch.full((1,), 0.3)
    ),
    "entry of the state": lambda t: state_of(t).update(power=3.0),
    "tensor of the state": lambda t: state_of(t).update(mean=torch.ones(2, 3)),
    "content of the state": lambda t: state_of(t)["mean"].fill_(1.0),
    "whole state": lambda t: t.optimizer.load_state_dict(t.optimizer.state_dict()),
    "hook": lambda t: t.handles.append(t.optimizer.register_step_post_hook(hook)),
    "parameters": freeze_bias,
    "another group": split_groups,
    "another optimizer": replace_optimizer,
}


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.5)


BUILT_IN: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], Change]] = {
    "momentum": (sgd, lambda t: group_of(t).update(momentum=0.9)),
    "nesterov": (sgd, lambda t: group_of(t).update(nesterov=True)),
    "weight decay": (sgd, lambda t: group_of(t).update(weight_decay=0.5)),
    "learning rate": (sgd, lambda t: group_of(t).update(lr=0.7)),
    "scheduler": (
        sgd,
        lambda t: torch.optim.lr_scheduler.StepLR(t.optimizer, 1, gamma=0.1),
    ),
    "hook": (sgd, lambda t: t.optimizer.register_step_pre_hook(hook)),
}


def assert_same(one: Trainer, graphed: Graphed, other: Trainer) -> None:
    x = torch.randn(4, 3)
    torch.testing.assert_close(graphed(x), other.step(x).detach())
    pairs = zip(one.net.parameters(), other.net.parameters(), strict=True)
    for mine, eager in pairs:
        torch.testing.assert_close(mine, eager, msg=str(graphed.status()))


def run(make: Callable[[Any], torch.optim.Optimizer], change: Change) -> Graphed:
    one, other = Trainer(make), Trainer(make)
    graphed = torchproof.graph(one.step)
    for _ in range(3):
        assert_same(one, graphed, other)
    assert graphed.status().replays >= 2, graphed.status()
    change(one)
    change(other)
    for _ in range(3):
        assert_same(one, graphed, other)
    return graphed


@pytest.mark.parametrize("name", CUSTOM)
def test_a_change_of_a_custom_optimizer_is_seen(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("rate", "scaled"):
        monkeypatch.setattr(Custom, each, getattr(Custom, each))
    graphed = run(Custom, CUSTOM[name])
    assert graphed.status().replays >= 4, graphed.status()


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_change_of_an_optimizer_of_torch_is_seen(name: str) -> None:
    graphed = run(*BUILT_IN[name])
    assert graphed.status().replays >= 4, graphed.status()


def test_a_scheduler_after_each_step() -> None:
    """A number that the step reads at every call cannot be recorded."""
    one, other = Trainer(Custom), Trainer(Custom)
    schedulers = [
        torch.optim.lr_scheduler.ExponentialLR(each.optimizer, 0.5)
        for each in (one, other)
    ]
    graphed = torchproof.graph(one.step)
    for _ in range(5):
        assert_same(one, graphed, other)
        for each in schedulers:
            each.step()


def test_a_scheduler_inside_of_the_step_is_not_recorded() -> None:
    def make() -> Callable[[Tensor], Tensor]:
        trainer = Trainer(sgd)
        scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 4, gamma=0.1)

        def step(x: Tensor) -> Tensor:
            loss = trainer.step(x)
            scheduler.step()  # changes the learning rate at every fourth call only
            return loss

        return step

    graphed = torchproof.graph(make())
    for _ in range(2):  # the first one creates the state of the optimizer
        graphed(torch.randn(4, 3))
    assert [stop.kind for stop in graphed.status().stops][:1] == ["python"]
    assert graphed.status().replays == 0


class Wrapper(torch.optim.Optimizer):
    """Has the groups and the state of another optimizer, as libraries do it."""

    def __init__(self, parameters: Any) -> None:
        self.inner = Custom(parameters)
        self.scale = 1.0

    param_groups = property(lambda self: self.inner.param_groups)  # type: ignore[assignment]
    state = property(lambda self: self.inner.state)  # type: ignore[assignment]

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.config.scale = self.scale
        self.inner.step()


@pytest.mark.parametrize(
    "change",
    [
        lambda t: setattr(t.optimizer, "scale", 3.0),
        lambda t: setattr(t.optimizer.inner, "beta", 0.9),
        lambda t: group_of(t).update(lr=0.7),
    ],
)
def test_a_change_of_a_wrapped_optimizer_is_seen(change: Change) -> None:
    graphed = run(Wrapper, change)
    assert graphed.status().replays >= 4, graphed.status()


class Counting(Custom):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.steps = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        self.beta = 1.0 / self.steps
        super().step()


def test_an_optimizer_that_counts_is_not_recorded() -> None:
    one, other = Trainer(Counting), Trainer(Counting)
    graphed = torchproof.graph(one.step)
    x = torch.randn(4, 3)
    for number in range(4):
        graphed(x)
        other.step(x)
        if number:  # the first call runs the step more than once
            assert graphed.status().stops[0].kind == "python"
    assert graphed.status().replays == 0


def test_state_that_the_step_does_not_read_may_change() -> None:
    one, other = Trainer(Custom), Trainer(Custom)
    graphed = torchproof.graph(one.step)
    for number in range(6):
        assert_same(one, graphed, other)
        one.optimizer.notes = number  # type: ignore[attr-defined]
        group_of(one)["initial_lr"] = float(number)
    assert graphed.status().recordings == 1


def test_what_a_step_reads_of_its_scheduler() -> None:
    net = nn.Linear(3, 2)
    optimizer = sgd(net.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.1)

    def step(x: Tensor) -> Tensor:
        return x * scheduler.get_last_lr()[0] + scheduler.last_epoch

    graphed = torchproof.graph(step)
    x = torch.ones(3)
    for _ in range(3):
        torch.testing.assert_close(graphed(x), step(x))
        torch.testing.assert_close(graphed(x), step(x))
        optimizer.step()
        scheduler.step()


def test_factors_of_a_scaler() -> None:
    def make() -> tuple[Trainer, Any, Callable[[Tensor], Tensor]]:
        trainer = Trainer(sgd)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)

        def step(x: Tensor) -> Tensor:
            loss = trainer.net(x).square().mean()
            scaled: Tensor = scaler.scale(loss)
            return scaled + scaler.get_growth_factor()

        return trainer, scaler, step

    _, scaler, step = make()
    _, twin, eager = make()
    graphed = torchproof.graph(step)
    x = torch.randn(4, 3)
    for factor in (2.0, 3.0):
        scaler.set_growth_factor(factor)
        twin.set_growth_factor(factor)
        for _ in range(3):
            torch.testing.assert_close(graphed(x), eager(x).detach())
