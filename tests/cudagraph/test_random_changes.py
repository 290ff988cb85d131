"""Calls and changes in random order, against a twin that runs in eager.

Answers, parameters, gradients and buffers are compared after every call, in float64, so
that nothing but a stale or lost value makes a difference.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof

CALLS = 25
Optimizer = torch.optim.Optimizer | None


class Net(nn.Module):
    """Looks at its surroundings in many ways."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.b = nn.Linear(8, 2)
        self.config = SimpleNamespace(scale=1.0, act="relu")
        self.modes = {"skip": False}
        self.layers = ["a", "b"]
        self.register_buffer("table", torch.arange(8.0))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.a(x) * self.config.scale
        if self.modes["skip"]:
            hidden = hidden + 1
        hidden = self.norm(hidden)
        hidden = hidden.relu() if self.config.act == "relu" else hidden.tanh()
        return self.b(hidden * len(self.layers) + self.table)


@torch.no_grad()
def change_weight(net: Net, optimizer: Optimizer) -> None:
    net.a.weight.mul_(1.1)


def replace_weight(net: Net, optimizer: Optimizer) -> None:
    old = net.a.weight
    net.a.weight = nn.Parameter(torch.linspace(-1, 1, 32).view(8, 4))
    if optimizer is not None:
        optimizer.state.pop(old, None)
        (group,) = optimizer.param_groups
        group["params"] = [
            net.a.weight if each is old else each for each in group["params"]
        ]


def move_weight(net: Net, optimizer: Optimizer) -> None:
    net.b.weight.data = net.b.weight.data.clone() * 0.9


def flip_training(net: Net, optimizer: Optimizer) -> None:
    net.train(not net.training)


def set_scale(net: Net, optimizer: Optimizer) -> None:
    net.config.scale = 3.0 - net.config.scale


def set_activation(net: Net, optimizer: Optimizer) -> None:
    net.config.act = "tanh" if net.config.act == "relu" else "relu"


def flip_mode(net: Net, optimizer: Optimizer) -> None:
    net.modes["skip"] = not net.modes["skip"]


def change_list(net: Net, optimizer: Optimizer) -> None:
    if len(net.layers) < 3:
        net.layers.append("c")
    else:
        net.layers.pop()


def replace_table(net: Net, optimizer: Optimizer) -> None:
    net.table = net.table + 1


def drop_gradients(net: Net, optimizer: Optimizer) -> None:
    net.zero_grad()


def zero_gradients(net: Net, optimizer: Optimizer) -> None:
    net.zero_grad(set_to_none=False)


def set_gradient(net: Net, optimizer: Optimizer) -> None:
    net.b.bias.grad = torch.ones_like(net.b.bias)


def freeze(net: Net, optimizer: Optimizer) -> None:
    net.a.weight.requires_grad_(not net.a.weight.requires_grad)


def load(net: Net, optimizer: Optimizer) -> None:
    net.load_state_dict(copy.deepcopy(net.state_dict()))


CHANGES: tuple[Callable[[Net, Optimizer], None], ...] = (
    *(change_weight, replace_weight, move_weight, flip_training, set_scale),
    *(set_activation, flip_mode, change_list, replace_table, drop_gradients),
    *(zero_gradients, set_gradient, freeze, load),
)


def whole_step(net: Net, optimizer: torch.optim.Optimizer) -> Callable[..., Tensor]:
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def sgd(net: Net) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.002, momentum=0.9)


class Pair:
    """A graphed step and its twin in eager."""

    def __init__(self, kind: str) -> None:
        self.net, optimizers = Net(), (None, None)
        self.twin = copy.deepcopy(self.net)
        if kind == "optimizer":
            optimizers = sgd(self.net), sgd(self.twin)
            self.graphed = torchproof.graph(whole_step(self.net, optimizers[0]))
            self.eager = whole_step(self.twin, optimizers[1])
        elif kind == "training":
            self.graphed = torchproof.graph(self.net, train=True)
            self.eager = self._backward
        else:
            padding: Any = {"pad": {"x": ("batch",)}, "buckets": [4, 8]}
            self.graphed = torchproof.graph(
                self.net, **(padding if kind == "padded" else {})
            )
            self.eager = torch.no_grad()(self.twin)
        self.optimizers = optimizers

    def _backward(self, x: Tensor) -> Tensor:
        output = self.twin(x)
        output.mean().backward()
        return output

    def change(self, change: Callable[[Net, Optimizer], None]) -> None:
        change(self.net, self.optimizers[0])
        change(self.twin, self.optimizers[1])

    def call(self, x: Tensor, told: str) -> None:
        self.same("answer", self.graphed(x.clone()), self.eager(x.clone()), told)
        twins = self.twin.parameters()
        for (name, one), other in zip(self.net.named_parameters(), twins, strict=True):
            self.same(name, one, other, told)
            self.same(f"gradient of {name}", one.grad, other.grad, told)
        for one, other in zip(self.net.buffers(), self.twin.buffers(), strict=True):
            self.same("a buffer", one, other, told)

    def same(self, name: str, one: Any, other: Any, told: str) -> None:
        assert (one is None) == (other is None), f"{name} after {told}"
        if one is not None:
            torch.testing.assert_close(
                one.detach(),
                other.detach(),
                rtol=1e-5,
                atol=1e-7,
                msg=f"{name} after {told}\n{self.graphed.status()}",
            )


def run(kind: str, seed: int) -> int:
    """A sequence of calls and changes; how many of the calls were replayed."""
    chance, pair, told = random.Random(seed), Pair(kind), []
    for _ in range(CALLS):
        if chance.random() < 0.4:
            change = chance.choice(CHANGES)
            told.append(change.__name__)
            pair.change(change)
        size = chance.choice([2, 3, 4, 5])
        told.append(f"call {size}")
        pair.call(torch.randn(size, 4), ", ".join(told))
    return pair.graphed.status().replays


@pytest.fixture(autouse=True)
def float64() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


KINDS = ("inference", "training", "optimizer", "padded")


@pytest.mark.parametrize("kind", ["inference", "training"])
def test_nothing_is_stale(kind: str) -> None:
    assert run(kind, seed=7) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(7, 38))
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_stale_in_many_sequences(kind: str, seed: int) -> None:
    assert run(kind, seed) > 0
