"""Calls and changes in random order, against a twin that runs in eager.

Answers, parameters, gradients and buffers are compared after every call, in float64, so
that nothing but a stale or lost value makes a difference.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_changes import CHANGES, Change, Net
from torch import Tensor

import torchproof

CALLS = 25


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

    def change(self, change: Change) -> None:
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
