"""Training steps that are replayed: gradients, optimizers, schedules, scalers."""

import copy
import importlib
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchproof


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))


def same_weights(one: nn.Module, other: nn.Module) -> None:
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def test_forward_and_backward_of_a_module() -> None:
    model = net()
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(model, (torch.randn(3, 4),), train=True)
    for _ in range(3):
        x = torch.randn(3, 4)
        model.zero_grad()
        twin.zero_grad()
        graphed(x)
        twin(x).mean().backward()
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    assert graphed.status().recordings == 1


def test_gradients_add_up_over_calls() -> None:
    model = net()
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(model, train=True)
    for _ in range(2):
        model.zero_grad()
        twin.zero_grad()
        for _ in range(4):
            x = torch.randn(3, 4)
            graphed(x)
            twin(x).mean().backward()
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    # One that begins without gradients and one that adds to them.
    assert graphed.status().recordings == 2
    model.zero_grad(set_to_none=False)
    twin.zero_grad()
    x = torch.randn(3, 4)
    graphed(x)
    twin(x).mean().backward()
    torch.testing.assert_close(model[0].weight.grad, twin[0].weight.grad)
    model[0].weight.grad = torch.ones_like(model[0].weight)
    twin[0].weight.grad = torch.ones_like(twin[0].weight)
    graphed(x)
    twin(x).mean().backward()
    torch.testing.assert_close(model[0].weight.grad, twin[0].weight.grad)


Make = Callable[[nn.Module], torch.optim.Optimizer]


@pytest.fixture(autouse=True)
def counters_on_the_cpu_count_as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    adam = importlib.import_module("torch.optim.adam")
    devices = "_get_capturable_supported_devices"
    monkeypatch.setattr(adam, devices, lambda supports_xla=True: ["cpu"])


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step_of(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[Tensor, Tensor], Tensor]:
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    return step


@pytest.mark.parametrize("make", [adamw, sgd])
def test_whole_steps_equal_eager(make: Make) -> None:
    model = net()
    twin = copy.deepcopy(model)
    optimizer, other = make(model), make(twin)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    others = torch.optim.lr_scheduler.StepLR(other, 3, 0.5)
    graphed = torchproof.graph(step_of(model, optimizer))
    plain = step_of(twin, other)
    for _ in range(10):
        x, y = torch.randn(3, 4), torch.randn(3, 2)
        torch.testing.assert_close(graphed(x, y), plain(x, y).detach())
        schedule.step()
        others.step()
        same_weights(model, twin)
    assert isinstance(optimizer.param_groups[0]["lr"], float)
    if make is adamw:  # its rate is read from memory; SGD's only on a GPU
        assert graphed.status().recordings == 1, graphed.status()


def test_another_setting_leads_to_another_recording() -> None:
    model = net()
    twin = copy.deepcopy(model)
    optimizer, other = adamw(model), adamw(twin)
    graphed, plain = torchproof.graph(step_of(model, optimizer)), step_of(twin, other)
    for decay in (0.01, 0.5):
        optimizer.param_groups[0]["weight_decay"] = decay
        other.param_groups[0]["weight_decay"] = decay
        for _ in range(3):
            x, y = torch.randn(3, 4), torch.randn(3, 2)
            graphed(x, y)
            plain(x, y)
    same_weights(model, twin)
    assert graphed.status().recordings == 2
    assert "weight_decay" in graphed.status().changes[0]


def test_state_that_is_loaded_is_used() -> None:
    model = net()
    optimizer = adamw(model)
    graphed = torchproof.graph(step_of(model, optimizer))
    x, y = torch.randn(3, 4), torch.randn(3, 2)
    for _ in range(3):
        graphed(x, y)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    expected = graphed(x, y)
    graphed(x, y)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(copy.deepcopy(saved[1]))
    torch.testing.assert_close(graphed(x, y), expected)
    twin = net()
    twin.load_state_dict(saved[0])
    other = adamw(twin)
    other.load_state_dict(saved[1])
    step_of(twin, other)(x, y)
    same_weights(model, twin)


def test_a_scaler_makes_its_numbers_before_it_is_recorded() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(x: Tensor) -> Tensor:
        return scaler.scale(x.sum())

    graphed = torchproof.graph(step, (torch.ones(3),))
    for _ in range(2):
        assert graphed(torch.ones(3)) == 12
    status = graphed.status()
    assert (status.plain_calls, status.replays) == (1, 1)


class ThreeHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 8)
        self.heads = nn.ModuleDict({task: nn.Linear(8, 2) for task in "abc"})

    def forward(self, x: Tensor, task: str) -> Tensor:
        answer: Tensor = self.heads[task](torch.tanh(self.trunk(x)))
        return answer


def test_gradients_of_another_recording_are_not_overwritten() -> None:
    model = ThreeHeads()
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(model, train=True)
    for tasks in ("ca", "ba", "cb", "ab", "abc", "cba"):
        model.zero_grad()
        twin.zero_grad()
        for task in tasks:
            x = torch.randn(3, 4)
            graphed(x, task)
            twin(x, task).mean().backward()
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    assert graphed.status().replays == graphed.status().calls


def test_a_replay_that_is_discarded_leaves_gradients_as_they_are() -> None:
    answers = []
    for graphs in (False, True):
        torch.manual_seed(0)
        model = net()
        model.drops = True

        def step(x: Tensor, model: nn.Module = model) -> Tensor:
            if model.drops:
                model.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss.detach()

        run = torchproof.graph(step) if graphs else step
        losses = [run(torch.randn(3, 4)) for _ in range(3)]
        model.drops = False  # seen when the recording that drops them has begun
        losses += [run(torch.randn(3, 4)) for _ in range(3)]
        answers.append((losses, [each.grad for each in model.parameters()]))
    torch.testing.assert_close(answers[0], answers[1])
