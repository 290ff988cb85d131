"""What a recording keeps in memory: few copies, on the host, freed when it is done."""

import weakref
from typing import Any

import pytest
import strip
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime.cudagraph import eager_recorder, step_gradients


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))


def test_state_that_cannot_be_saved_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eager_recorder.Copies, "make", lambda copies, tensor: None)
    total = torch.zeros(3)

    def step(x: Tensor) -> Tensor:
        total.add_(x)
        return total * 2

    graphed = torchproof.graph(step)
    for number in (1, 2):
        assert torch.equal(graphed(torch.ones(3)), torch.full((3,), 2.0 * number))
    [stop] = graphed.status().stops
    assert stop.kind == "memory"
    assert "does not fit" in stop.reason
    assert "\n" not in str(stop)


def trained(model: nn.Module, begin: Any) -> Any:
    def step(x: Tensor) -> Tensor:
        norm = begin()
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach() + norm

    return step


@pytest.mark.parametrize("way", ["drops", "adds", "reads"])
def test_gradients_from_before_the_call(way: str) -> None:
    """Steps that drop them run without them; for others they are there."""
    answers = []
    for graphs in (False, True):
        torch.manual_seed(0)
        model = net()

        def begin(model: nn.Module = model) -> Tensor:
            norm = torch.zeros(())
            if way == "reads":
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        norm = norm + parameter.grad.norm()
            if way != "adds":
                model.zero_grad()
            return norm

        step = trained(model, begin)
        run = torchproof.graph(step) if graphs else step
        x = torch.randn(3, 4)
        losses = [run(x)]  # without gradients
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        alias = model[0].weight.grad.detach()
        if graphs:
            run.prepare(x)
            for parameter in model.parameters():
                assert bool((parameter.grad == 1).all())
            assert alias.data_ptr() == model[0].weight.grad.data_ptr()
        losses += [run(x), run(x)]
        answers.append((losses, [each.grad for each in model.parameters()]))
    torch.testing.assert_close(answers[0], answers[1])


def test_earlier_gradients_take_no_memory_while_a_step_that_drops_them_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    graphed = torchproof.graph(step)
    x = torch.randn(3, 4)
    graphed(x)  # creates the state of the optimizer
    earlier = [weakref.ref(each.grad) for each in model.parameters()]
    alive: list[int] = []
    rehearse = strip.Strip.rehearse

    def counted(capture: Any, run: Any) -> Any:
        alive.append(sum(each() is not None for each in earlier))
        return rehearse(capture, run)

    monkeypatch.setattr(strip.Strip, "rehearse", counted)
    graphed(x)
    assert graphed.status().recordings == 1
    assert set(alive) == {0}


def test_gradients_that_no_code_sets_need_no_zeros(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Zeros show whether `zero_grad` or the like drops them before the backward."""
    zeros: list[Tensor] = []
    set_zeros = step_gradients.Gradients.set_zeros

    def counted(gradients: step_gradients.Gradients) -> list[Tensor]:
        found = set_zeros(gradients)
        zeros.extend(found)
        return found

    monkeypatch.setattr(step_gradients.Gradients, "set_zeros", counted)
    model, other = net(), net()
    other.load_state_dict(model.state_dict())
    graphed = torchproof.graph(model, train=True)
    for number in range(4):  # two without and with gradients, then again without
        x = torch.full((3, 4), float(number))
        if number == 2:
            model.zero_grad()
            other.zero_grad()
        graphed(x)
        other(x).mean().backward()
        for one, expected in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(one.grad, expected.grad)
    assert not zeros
    assert (graphed.status().recordings, graphed.status().replays) == (2, 4)

    def step(x: Tensor) -> Tensor:
        other.zero_grad()
        loss = other(x).mean()
        loss.backward()
        return loss

    graphed = torchproof.graph(step)
    other.zero_grad()
    for _ in range(2):
        graphed(torch.ones(3, 4))
    assert zeros
    assert graphed.status().recordings == 1


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("has_gradients", [False, True])
def test_backward_that_can_be_differentiated(has_gradients: bool) -> None:
    """It replaces gradients by sums, where another one adds in place."""
    answers = []
    for graphs in (False, True):
        torch.manual_seed(0)
        model = net()

        def step(x: Tensor, model: nn.Module = model) -> Tensor:
            loss = model(x).square().mean()
            loss.backward(create_graph=True)
            return loss.detach()

        for parameter in model.parameters() if has_gradients else ():
            parameter.grad = torch.ones_like(parameter)
        run = torchproof.graph(step) if graphs else step
        for number in range(5):
            run(torch.full((3, 4), float(number)))
            grads = [each.grad for each in model.parameters() if each.grad is not None]
            answers.append([each.detach().clone() for each in grads])
    torch.testing.assert_close(answers[5:], answers[:5])
