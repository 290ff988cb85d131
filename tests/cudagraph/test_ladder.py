"""Steps that cannot be recorded as a whole run in the fastest way that is proved."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime.cudagraph import ladder
from torchproof.runtime.cudagraph.ladder import Kind


class Branching(nn.Module):
    """Chooses by a number of the input, which the host has to read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(1)
        x = self.first(x).relu()
        if x.sum() > 0:
            return self.second(x)
        return x


def seconds_of(**taken: float) -> Callable[..., float]:
    """Stands for the timing, which runs each way nevertheless."""
    measured = ladder._seconds

    def seconds(trial: Any, way: Any) -> float:
        measured(trial, way)
        return taken[way.kind.name]

    return seconds


@pytest.mark.parametrize("fastest", Kind)
@pytest.mark.usefixtures("fresh_dynamo")
def test_the_fastest_way_answers(
    fastest: Kind, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = {kind.name: 2.0 for kind in Kind} | {fastest.name: 1.0}
    monkeypatch.setattr(ladder, "_seconds", seconds_of(**taken))
    model = Branching().to(device).eval()
    graphed = torchproof.graph(model)
    for number in range(5):
        x = torch.randn(3, 4, device=device)
        torch.testing.assert_close(graphed(x), plain(model, x))
        assert model.seen.item() == 2 * number + 2  # nothing of the trials is left
    (rung,) = graphed.status().rungs
    assert rung.way == fastest.value and rung.why
    assert graphed.status().plain_calls == 5


def plain(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        answer: Tensor = model(x)
    return answer


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.usefixtures("fresh_dynamo")
def test_gradients_and_answers_outlive_the_next_call(device: str) -> None:
    model = Branching().to(device)
    graphed = torchproof.graph(model, train=True)
    kept: list[tuple[Tensor, Tensor]] = []
    total = torch.zeros(4, 4, device=device)
    for _ in range(6):
        x = torch.randn(3, 4, device=device).abs()
        answer = graphed(x)
        kept.append((answer, answer.clone()))
        copy = Branching().to(device)
        copy.load_state_dict(model.state_dict())
        copy(x).float().mean().backward()
        assert copy.first.weight.grad is not None
        total += copy.first.weight.grad
    assert model.first.weight.grad is not None
    torch.testing.assert_close(model.first.weight.grad, total)  # they accumulate
    assert all(torch.equal(answer, then) for answer, then in kept)
    (rung,) = graphed.status().rungs
    assert rung.way is not None and not rung.refusals


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_way_that_gives_something_else_is_not_used(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ladder.Way.__call__

    def wrong(way: ladder.Way, call: Any) -> Any:
        answer = right(way, call)
        return answer if way.kind is Kind.EAGER else answer + 1

    monkeypatch.setattr(ladder.Way, "__call__", wrong)
    model = Branching().to(device).eval()
    graphed = torchproof.graph(model)
    x = torch.randn(3, 4, device=device)
    for _ in range(3):
        torch.testing.assert_close(graphed(x), plain(model, x))
    (rung,) = graphed.status().rungs
    assert rung.way == Kind.EAGER.value
    assert len(rung.refusals) == 2 and "differs from eager" in rung.refusals[0]


def test_a_call_that_is_profiled_or_fails_is_not_tried() -> None:
    model = Branching().eval()
    graphed = torchproof.graph(model)
    good, bad = torch.ones(3, 4), torch.full((3, 4), torch.nan)

    def check(module: nn.Module, args: Any) -> None:
        if args[0].isnan().any():
            raise ValueError("not a number")

    model.second.register_forward_pre_hook(check)
    model.first.register_forward_pre_hook(check)
    graphed(good)  # is refused
    sys.setprofile(lambda *_: None)
    try:
        torch.testing.assert_close(graphed(good), plain(model, good))
    finally:
        sys.setprofile(None)
    with pytest.raises(ValueError, match="not a number"):
        graphed(bad)
    assert model.seen.item() == 4  # as after four calls in eager
    assert graphed.status().rungs == ()


def test_what_cannot_be_undone_is_not_tried(device: str) -> None:
    numbers = iter(range(100))

    def step(x: Tensor) -> Tensor:
        return x + next(numbers)

    graphed = torchproof.graph(step)
    x = torch.zeros(3, device=device)
    assert [graphed(x)[0].item() for _ in range(4)] == [0, 1, 2, 3]
    assert all(rung.way is None for rung in graphed.status().rungs)


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_trial_undoes_what_took_the_place_of_something_else(device: str) -> None:
    class Counter:
        calls = 0

        def next(self) -> int:
            self.calls += 1
            return self.calls

    held = {"counter": Counter()}

    def step(x: Tensor) -> Tensor:
        return x + held["counter"].next()

    graphed = torchproof.graph(step)
    for number in range(1, 7):
        assert graphed(torch.zeros(2, device=device))[0] == number
    held["counter"] = Counter()
    for number in range(1, 3):  # of another shape, which is tried in each way
        assert graphed(torch.zeros(3, device=device))[0] == number


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_step_that_can_be_recorded_in_another_state_is(device: str) -> None:
    class Switching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.sum().item() if self.training else x + 1

    model = Switching().to(device)
    graphed = torchproof.graph(model)
    x = torch.ones(3, device=device)
    for _ in range(3):
        assert torch.equal(graphed(x), x * 3)
    model.eval()
    for _ in range(2 * 16):
        assert torch.equal(graphed(x), x + 1)
    assert graphed.status().replays > 0


@pytest.mark.usefixtures("fresh_dynamo")
def test_pieces_are_not_recorded_at_every_call(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = torch.zeros(0, 3, device=device)

        def forward(self, x: Tensor) -> Tensor:
            self.kept = torch.cat([self.kept, x])
            return self.kept.sum(0)

    seconds = seconds_of(PIECES=1.0, COMPILED=2.0, EAGER=3.0)
    monkeypatch.setattr(ladder, "_seconds", seconds)
    graphed = torchproof.graph(Growing())
    x = torch.ones(1, 3, device=device)
    assert [graphed(x)[0].item() for _ in range(8)] == [*range(1, 9)]
    (rung,) = graphed.status().rungs
    assert rung.way == Kind.COMPILED.value
