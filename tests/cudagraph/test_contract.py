"""What users say of the state that a step depends on: `checks`, `audit`, `depends`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime.cudagraph import call_inputs
from torchproof.runtime.cudagraph.call_inputs import LikeCall


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


X = torch.ones(3)
CHANGED = r"scale was 2\.0 and is now 3\.0"


def test_only_arguments_are_compared_if_the_caller_says_so() -> None:
    model = Scaled()
    graphed = torchproof.graph(model, (X,), checks="arguments")
    assert torch.equal(graphed(X), 2 * X)
    model.scale = 3.0
    assert torch.equal(graphed(X), 2 * X)  # as it was promised not to change
    with pytest.raises(torchproof.UserError, match=CHANGED):
        graphed(torch.ones(5))  # a recording of it would not be like the other one


def test_an_audit_names_what_changed() -> None:
    model = Scaled()
    graphed = torchproof.graph(model, (X,), checks="arguments", audit=4)
    for _ in range(6):
        graphed(X)
    model.scale = 3.0
    graphed(X)  # the seventh call; the eighth is audited
    with pytest.raises(torchproof.UserError, match=CHANGED):
        graphed(X)


def test_an_audit_of_what_does_not_change_says_nothing() -> None:
    graphed = torchproof.graph(Scaled(), (X,), checks="arguments", audit=2)
    for number in range(6):
        x = torch.full((3,), float(number))
        assert torch.equal(graphed(x), 2 * x)
    assert graphed.status().replays == 6


def test_what_is_recorded_later_leaves_no_recording_stale() -> None:
    model = Scaled()
    graphed = torchproof.graph(model, (X,))
    assert torch.equal(graphed(X), 2 * X)
    model.scale = 3.0
    graphed.prepare(torch.ones(5))
    assert torch.equal(graphed(X), 3 * X)


def test_each_value_that_a_step_depends_on_has_its_recording() -> None:
    class Hidden:
        """As an object of a C extension: what it holds cannot be read."""

        value = 1.0

    hidden = Hidden()

    def read() -> float:
        return hidden.value

    cached: dict[str, Any] = {}

    def step(x: Tensor) -> Tensor:
        return x * cached.get("x", 1.0)

    graphed = torchproof.graph(step, depends=read)
    for value in (1.0, 2.0, 1.0):
        hidden.value = value
        assert torch.equal(graphed(X), X)
    assert graphed.status().recordings == 2
    assert graphed.status().replays == 3


@pytest.mark.parametrize("value", [X, (1, [X]), {1}, object()])
def test_what_cannot_be_told_apart_is_nothing_to_depend_on(value: Any) -> None:
    graphed = torchproof.graph(Scaled(), depends=lambda: value)
    with pytest.raises(torchproof.UserError, match="depends returns"):
        graphed(X)


def test_an_error_of_depends_is_the_callers() -> None:
    def fails() -> None:
        raise KeyError("setting")

    with pytest.raises(KeyError, match="setting"):
        torchproof.graph(Scaled(), depends=fails)(X)


def test_a_step_that_is_not_recorded_asks_what_it_depends_on_too() -> None:
    asked: list[int] = []
    graphed = torchproof.graph(
        lambda x: x * x.sum().item(), depends=lambda: asked.append(1)
    )
    for _ in range(5):
        graphed(X)
    assert len(asked) >= 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"checks": "none"}, "checks"),
        ({"audit": 3}, "audit needs checks='arguments'"),
        ({"checks": "arguments", "audit": 0}, "audit"),
        ({"depends": 3}, "depends"),
    ],
)
def test_a_wrong_contract_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(torchproof.UserError, match=message):
        torchproof.graph(Scaled(), (X,), **arguments)


# -- calls that are recognised without their key ---------------------------------------

CALL = ((torch.ones(2, 3), 1), {"y": torch.zeros(4), "name": "a", "flag": None})


def tagged() -> Tensor:
    tensor = torch.ones(2, 3)
    tensor.mine = 1  # type: ignore[attr-defined]
    return tensor


SHARED = torch.zeros(10)


@pytest.mark.parametrize(
    "call",
    [
        ((torch.ones(2, 4), 1), CALL[1]),
        ((torch.ones(3, 2).t(), 1), CALL[1]),
        ((torch.ones(2, 3, dtype=torch.float64), 1), CALL[1]),
        ((torch.ones(2, 3, requires_grad=True), 1), CALL[1]),
        ((nn.Parameter(torch.ones(2, 3)), 1), CALL[1]),
        ((tagged(), 1), CALL[1]),
        ((CALL[0][0], 2), CALL[1]),
        ((CALL[0][0], True), CALL[1]),
        ((CALL[0][0],), CALL[1]),
        (CALL[0], {**CALL[1], "name": "b"}),
        (CALL[0], {"name": "a", "y": torch.zeros(4), "flag": None}),
        (CALL[0], {"y": torch.zeros(4), "name": "a"}),
        ((SHARED[:6].view(2, 3), 1), {**CALL[1], "y": SHARED[6:]}),
    ],
)
def test_another_call_is_not_recognised(call: Any) -> None:
    like = LikeCall.of(CALL)
    assert like is not None
    assert like.tensors_of(call) is None
    assert call_inputs.key_of(call) != call_inputs.key_of(CALL)


def test_a_call_is_recognised_by_its_form() -> None:
    like = LikeCall.of(CALL)
    again = (torch.rand(2, 3), 1), {"y": torch.rand(4), "name": "a", "flag": None}
    assert like is not None
    tensors = like.tensors_of(again)
    assert tensors is not None
    assert list(map(id, tensors)) == [id(again[0][0]), id(again[1]["y"])]


@pytest.mark.parametrize(
    "call",
    [((1.5,), {}), (([X],), {}), ((torch.ones(2, requires_grad=True),), {})],
)
def test_what_only_the_key_can_tell_apart_is_left_to_it(call: Any) -> None:
    assert LikeCall.of(call) is None
