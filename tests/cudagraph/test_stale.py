"""What a step reads of its surroundings: a change is seen, wherever it is."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime.cudagraph.graphed_step import Graphed

X = torch.ones(3)
FACTOR = 2.0
HELP = 2.0
ARRAY = numpy.array([2.0])
loss: Any = None


def expect(graphed: Graphed, step: Callable[..., Tensor], *args: Any) -> None:
    given = graphed(*args)
    torch.testing.assert_close(given, step(*args).detach(), msg=str(graphed.status()))


class Net(nn.Module):
    """Reads a number from each kind of place."""

    rate = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(scale=2.0)
        self.flags = {"double"}
        self.modes = {"first": True}

    def inner(self, x: Tensor) -> Tensor:
        return x * self.config.scale * self.rate * FACTOR * helped(1.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x) * (2 if "double" in self.flags else 3)
        return x * (5 if "first" in self.modes else 7)


def helped(number: float) -> float:
    return number * HELP


def rename(net: Net) -> None:
    net.modes["second"] = net.modes.pop("first")


CHANGES: dict[str, Callable[[Net], Any]] = {
    "attribute of an object": lambda net: setattr(net.config, "scale", 5.0),
    "attribute of a class": lambda net: setattr(Net, "rate", net.rate + 1),
    "global": lambda net: globals().update(FACTOR=FACTOR + 1),
    "global of a function that is called": lambda net: globals().update(HELP=HELP + 1),
    "set": lambda net: net.flags.clear(),
    "key": rename,
    "method": lambda net: setattr(Net, "inner", lambda self, x: x * 11),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen(
    change: Callable[[Net], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rate", "inner"):
        monkeypatch.setattr(Net, name, getattr(Net, name))
    net = Net()
    graphed = torchproof.graph(net, (X,))
    before = graphed(X)
    change(net)
    expect(graphed, net, X)
    assert not torch.equal(graphed(X), before)
    assert graphed.status().changes


class Trainer:
    """Its step calls another method, which reads what the step does not name."""

    def __init__(self) -> None:
        self.k = 2.0

    def inner(self, x: Tensor) -> Tensor:
        return x * self.k

    def step(self, x: Tensor) -> Tensor:
        return self.inner(x)

    __call__ = step


@pytest.mark.parametrize("called", [False, True])
def test_attributes_that_methods_read(called: bool) -> None:
    trainer = Trainer()
    step = trainer if called else trainer.step
    graphed = torchproof.graph(step)
    expect(graphed, step, X)
    trainer.k = 3.0
    expect(graphed, step, X)


class Slotted:
    __slots__ = ("k",)

    def __init__(self) -> None:
        self.k = 2.0


def test_slots_arrays_and_bound_arguments() -> None:
    slotted = Slotted()
    step = functools.partial(
        lambda x, k: x * k * slotted.k * float(ARRAY[0]),
        k=2.0,
    )
    graphed = torchproof.graph(step)
    expect(graphed, step, X)
    slotted.k = 4.0
    expect(graphed, step, X)
    ARRAY[0] += 1
    expect(graphed, step, X)
    step.keywords["k"] = 3.0
    expect(graphed, step, X)


def test_a_weight_seen_another_way() -> None:
    model, x = nn.Linear(3, 3, bias=False), torch.randn(2, 3)
    graphed = torchproof.graph(model)
    expect(graphed, model, x)
    model.weight.data = model.weight.data.t()  # same memory, other strides
    expect(graphed, model, x)


class Growing(nn.Module):
    """Keeps a table that a longer input replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(4.0)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > len(self.table):
            self.table = torch.arange(float(len(x)))
        return x + self.table[: len(x)]


def test_a_table_that_was_replaced_is_not_used() -> None:
    model = Growing()
    graphed = torchproof.graph(model)
    for length in (4, 8, 4):
        expect(graphed, model, torch.ones(length))
    with torch.no_grad():
        model.table.mul_(3)
    for length in (4, 8):
        expect(graphed, model, torch.ones(length))


def test_a_global_with_the_name_of_an_attribute_is_another_thing() -> None:
    def step(x: Tensor) -> Tensor:
        return SimpleNamespace(loss=x * 2).loss * 1

    graphed = torchproof.graph(step)
    for number in range(6):
        globals()["loss"] = number
        graphed(X)
    assert graphed.status().recordings == 1


# -- arguments -------------------------------------------------------------------------


def test_the_same_tensor_twice_is_another_call() -> None:
    def step(a: Tensor, b: Tensor) -> Tensor:
        return a * 10 + b

    graphed = torchproof.graph(step)
    one, other = torch.ones(3), torch.full((3,), 2.0)
    for pair in ((one, one), (one, other), (other, one), (other, other)):
        expect(graphed, step, *pair)


def test_arguments_that_share_memory() -> None:
    def reads(a: Tensor, b: Tensor) -> Tensor:
        return a * 10 + b

    def writes(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return b * 1

    graphed = torchproof.graph(reads)
    for _ in range(3):
        expect(graphed, reads, *torch.randn(2, 3).unbind())
    assert graphed.status().replays == 3
    graphed = torchproof.graph(writes)
    for _ in range(2):
        x = torch.ones(4)
        assert graphed(x, x[:2]).tolist() == [2.0, 2.0]
    assert "share memory" in graphed.falls_back[0]
    x = torch.ones(4)
    assert graphed(x, torch.zeros(2)).tolist() == [0.0, 0.0]
    assert x.tolist() == [2.0] * 4
    assert graphed.status().replays == 1


@dataclasses.dataclass
class Options:
    k: float = 2.0


class Choice(enum.Enum):
    TWO = 2
    THREE = 3


@pytest.mark.parametrize("options", [Options(), SimpleNamespace(k=2.0), Slotted()])
def test_an_argument_that_may_change_is_not_recorded(options: Any) -> None:
    def step(x: Tensor, options: Any) -> Tensor:
        return x * options.k

    graphed = torchproof.graph(step)
    expect(graphed, step, X, options)
    options.k = 9.0
    expect(graphed, step, X, options)
    why = graphed.falls_back[0]
    assert "argument.0.1" in why and type(options).__name__ in why


def test_arguments_that_cannot_change_count_by_value() -> None:
    def step(x: Tensor, choice: Choice, dtype: torch.dtype, deep: list[Any]) -> Tensor:
        return (x * choice.value).to(dtype) + deep[0]["bias"]

    graphed = torchproof.graph(step)
    for _ in range(2):
        expect(graphed, step, X, Choice.TWO, torch.float64, [{"bias": 1}])
        expect(graphed, step, X, Choice.THREE, torch.float32, [{"bias": 2}])
    assert (graphed.status().replays, graphed.status().recordings) == (4, 2)


def test_a_new_namespace_of_operators_changes_nothing() -> None:
    """Importing the compiler adds some; the step reads others."""

    def step(x: Tensor) -> Tensor:
        answer: Tensor = torch.ops.aten.relu(x)
        return answer

    graphed = torchproof.graph(step)
    x = torch.randn(4)
    graphed(x)
    _ = torch.ops.torchproof_test_namespace  # torch makes it at the first access
    assert torch.equal(graphed(x), x.relu())
    assert graphed.status().recordings == 1
    assert graphed.status().changes == ()
