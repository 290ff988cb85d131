"""What outlives a step is copied, once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from torchproof.records.run import UserError
from torchproof.runtime.steps import step


class Pair(NamedTuple):
    one: Tensor
    name: str


@dataclass(frozen=True)
class Frozen:
    scores: Tensor
    parts: dict[str, Any]


def test_every_tensor_of_a_value_is_copied() -> None:
    x = torch.arange(6.0)
    value = [Pair(x[:2], "a"), Frozen(x[2:4], {"b": (x[4:], None, 3)})]
    with step() as begun:
        pair, record = begun.keep(value)
        assert begun.counts.clones == 3 and begun.counts.bytes_cloned == 24
    x.fill_(-1)
    assert type(pair) is Pair and pair.one.tolist() == [0, 1] and pair.name == "a"
    assert type(record) is Frozen and record.scores.tolist() == [2, 3]
    assert record.parts["b"][0].tolist() == [4, 5] and record.parts["b"][1:] == (
        None,
        3,
    )
    assert value[1].scores.tolist() == [-1, -1]  # the value itself is as it was


def test_a_value_is_copied_once_in_a_step() -> None:
    x = torch.ones(3)
    with step() as begun:
        kept = begun.keep(x)
        assert begun.keep([x, kept])[0] is kept
        assert begun.keep(kept) is kept
        assert begun.counts.clones == 1
    with step() as begun:
        assert begun.keep(x) is not kept


def test_copies_of_dead_tensors_are_not_mistaken() -> None:
    with step() as begun:
        for number in range(100):  # ids are used again
            assert begun.keep(torch.full((1,), number)).item() == number
    assert begun.counts.clones == 100


def test_nothing_is_held_after_the_step() -> None:
    with step() as begun:
        gone = weakref.ref(begun.keep(torch.ones(3)))
    assert gone() is None


def test_tensors_in_attributes_of_an_object_are_copied() -> None:
    value = SimpleNamespace(x=torch.ones(1), n=1)
    with step() as begun:
        _, kept = begun.keep((1, value))
        assert kept.x is not value.x and kept.n == 1
        assert begun.keep(SimpleNamespace(x=1)).x == 1


@pytest.mark.parametrize(
    ("decorate", "clones"),
    [(step, 1), (step(outputs="copies"), 1), (step(outputs="buffers"), 0)],
)
def test_a_decorated_function_is_a_step(
    decorate: Callable[..., Any], clones: int, net: nn.Module, marks: list[str]
) -> None:
    def plain(x: Tensor) -> dict[str, Tensor]:
        """What it does."""
        return {"logits": step.run(net, x)}

    infer = decorate(plain)
    with torch.no_grad():
        assert infer(torch.ones(2, 4))["logits"].shape == (2, 4)
    assert infer.__doc__ == plain.__doc__ and len(marks) == 1
    counts = step.stats().inference
    assert (counts.steps, counts.calls, counts.clones) == (1, 1, clones)


def test_a_loss_is_copied_with_its_graph(net: nn.Module) -> None:
    train = step(lambda x: step.run(net, x).sum())
    for _ in range(2):
        net.zero_grad()
        train(torch.ones(2, 4)).backward()
        assert net.weight.grad is not None
        assert net.weight.grad.tolist() == [[2.0] * 4] * 4


def test_gradients_that_add_up_are_copied_once_before_the_mark(
    net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph_memory: list[Tensor] = []  # what a mark gives away

    def mark() -> None:
        for gradient in graph_memory:
            gradient.fill_(torch.nan)

    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", mark)
    copies = []
    for number in range(8):
        if number == 4:
            net.zero_grad(set_to_none=True)
        with step(parameters=net.parameters()) as begun:
            begun.run(net, torch.ones(2, 4)).sum().backward()
        graph_memory = [p.grad for p in net.parameters() if number % 4 == 0]
        copies.append(begun.counts.clones)
    assert copies == [0, 2, 0, 0, 0, 2, 0, 0]
    assert net.weight.grad is not None
    assert net.weight.grad.tolist() == [[4 * 2.0] * 4] * 4


def test_what_cannot_be_a_step() -> None:
    with pytest.raises(UserError, match=r"outputs='raw'.*'copies'.*'buffers'"):
        step(outputs="raw")  # type: ignore[call-overload]
    with pytest.raises(UserError, match=r"with torchproof\.step\(\)"):
        step(lambda: (yield))
