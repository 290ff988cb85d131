"""A graphed step gives what the step itself would: outputs, gradients, weights."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graph_models import close, close_gradients
from torch import Tensor, nn

import torchproof

pytestmark = pytest.mark.filterwarnings("ignore")  # what torch says about speed
GPU = pytest.mark.gpu
# The test double records operations of eager, no compiled code.
DEVICES_AND_STRATEGIES = [
    ("cpu", "eager"),
    *(
        pytest.param("cuda", each, marks=GPU)
        for each in ("eager", "full", "regional", "nested")
    ),
]


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(16), nn.Linear(16, 16)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(torch.tanh(self.inner(self.norm(x))))


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 16), nn.Linear(16, 2)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        answer: Tensor = self.head(x)
        return answer


def batch(device: str, rows: int = 3) -> Tensor:
    return torch.randn(rows, 4, device=device)


def small_net(device: str) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)


# -- inference -------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "strategy"), DEVICES_AND_STRATEGIES)
def test_outputs_equal_eager_while_weights_and_shapes_change(
    device: str, strategy: str
) -> None:
    model = Net().to(device).eval()
    graphed = torchproof.graph(model, (batch(device),), strategy=strategy)
    for _ in range(3):
        x = batch(device)
        close(graphed(x), model(x))
    with torch.no_grad():
        model.head.weight.mul_(2)
    close(graphed(x), model(x))
    status = graphed.status()
    assert (status.calls, status.replays, status.recordings) == (4, 4, 1)
    model.head.weight = nn.Parameter(torch.randn(2, 16, device=device))
    close(graphed(x), model(x))
    assert any("head.weight" in change for change in graphed.status().changes)
    model.blocks[0] = Block(0.0).to(device)
    close(graphed(x), model(x))
    close(graphed(x[:2]), model(x[:2]))
    assert graphed.status().recordings == 4
    shapes = {bucket.shapes for bucket in graphed.status().buckets}
    assert shapes == {("3x4",), ("2x4",)}
    model.double()
    close(graphed(x.double()), model(x.double()))
    assert graphed.falls_back == []


def test_outputs_survive_the_next_replay(device: str) -> None:
    model = Net(dropout=0.5).to(device).train()
    x = batch(device, 64)
    graphed = torchproof.graph(model, (x,))
    first = graphed(x)
    copied = first.clone()
    assert not torch.equal(first, graphed(x))  # dropout draws anew
    assert torch.equal(first, copied)
    assert graphed.falls_back == []
    assert graphed.status().buckets[0].verdict == "random"
    raw = torchproof.graph(model, outputs="buffers")
    assert raw(x) is raw(x * 2)


def test_train_and_eval_have_recordings_of_their_own(device: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(device)
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(model)
    for training in (True, False, True, False):
        model.train(training)
        twin.train(training)
        x = batch(device)
        close(graphed(x), twin(x))
    close(model[1].running_mean, twin[1].running_mean)
    assert graphed.status().recordings == 2


def test_state_that_changes_now_and_then_is_recorded_each_time(device: str) -> None:
    scale = {"by": 0.0}
    graphed = torchproof.graph(lambda x: x * scale["by"])
    x = batch(device)
    for number in range(8):
        scale["by"] = float(number)
        for _ in range(2):
            close(graphed(x), x * number)
    assert graphed.falls_back == [] and graphed.status().replays == 16


def test_an_example_leaves_no_trace(device: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model = model.to(device).train()
    before = copy.deepcopy(model.state_dict())
    x = batch(device)
    random = torch.get_rng_state()
    torchproof.graph(model, (x,))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(torch.get_rng_state(), random)


# -- gradients -------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "strategy"), DEVICES_AND_STRATEGIES)
def test_gradients_equal_eager(device: str, strategy: str) -> None:
    model = Net().to(device)
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(model, train=True, strategy=strategy)
    for _ in range(3):
        x = batch(device)
        model.zero_grad()
        twin.zero_grad()
        expected = twin(x)
        expected.mean().backward()
        close(graphed(x), expected)
        close_gradients(model, twin)
    assert graphed.falls_back == [] and graphed.status().recordings == 1


def test_gradients_add_up_over_calls(device: str) -> None:
    model = Net().to(device)
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(model, train=True)

    def call() -> None:
        x = batch(device)
        graphed(x)
        twin(x).mean().backward()
        close_gradients(model, twin)

    for _ in range(2):
        model.zero_grad()
        twin.zero_grad()
        for _ in range(3):
            call()
    # One that begins without gradients and one that adds to them.
    assert graphed.status().recordings == 2
    model.zero_grad(set_to_none=False)
    twin.zero_grad(set_to_none=False)
    call()
    for each in (model, twin):
        each.head.weight.grad = torch.ones_like(each.head.weight)
    call()
    assert graphed.falls_back == []


class ThreeHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 8)
        self.heads = nn.ModuleDict({task: nn.Linear(8, 2) for task in "abc"})

    def forward(self, x: Tensor, task: str) -> Tensor:
        answer: Tensor = self.heads[task](torch.tanh(self.trunk(x)))
        return answer


def test_gradients_of_another_recording_are_not_overwritten(device: str) -> None:
    model = ThreeHeads().to(device)
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(model, train=True)
    for tasks in ("ca", "ba", "abc", "cba"):
        model.zero_grad()
        twin.zero_grad()
        for task in tasks:
            x = batch(device)
            graphed(x, task)
            twin(x, task).mean().backward()
        close_gradients(model, twin)
    assert graphed.status().replays == graphed.status().calls


def test_a_replay_that_is_discarded_leaves_gradients_as_they_are(device: str) -> None:
    """The change is seen when the recording that drops them has begun."""
    model = Net().to(device)
    twin = copy.deepcopy(model)

    def step_of(model: Any) -> Callable[[Tensor], Tensor]:
        def step(x: Tensor) -> Tensor:
            if model.drops:
                model.zero_grad()
            loss: Tensor = model(x).square().mean()
            loss.backward()
            return loss.detach()

        return step

    graphed, plain = torchproof.graph(step_of(model)), step_of(twin)
    for drops in (True, False):
        model.drops = twin.drops = drops  # type: ignore[assignment]
        for _ in range(3):
            x = batch(device)
            close(graphed(x), plain(x))
            close_gradients(model, twin)


# -- optimizers ------------------------------------------------------------------------

Make = Callable[[nn.Module], torch.optim.Optimizer]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    on_cpu = next(model.parameters()).device.type == "cpu"  # a GPU needs no flag
    return torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=on_cpu)


def fused_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@pytest.fixture(autouse=True)
def counters_on_the_cpu_count_as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    adam = importlib.import_module("torch.optim.adam")
    devices = adam._get_capturable_supported_devices

    def supported(supports_xla: bool = True) -> list[str]:
        return [*devices(supports_xla), "cpu"]

    monkeypatch.setattr(adam, "_get_capturable_supported_devices", supported)


def whole_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, autocast: bool = False
) -> Callable[[Tensor, Tensor], Tensor]:
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
            loss = F.mse_loss(model(x).float(), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    return step


@pytest.mark.parametrize(
    ("device", "make", "steps"),
    [
        ("cpu", adamw, 6),
        ("cpu", sgd, 4),
        *(
            pytest.param("cuda", each, 100, marks=GPU)
            for each in (adamw, fused_adamw, sgd)
        ),
    ],
)
def test_whole_steps_with_a_schedule_equal_eager(
    device: str, make: Make, steps: int
) -> None:
    model = small_net(device)
    twin = copy.deepcopy(model)
    optimizers = make(model), make(twin)
    schedules = [
        torch.optim.lr_scheduler.CosineAnnealingLR(each, steps) for each in optimizers
    ]
    graphed = torchproof.graph(whole_step(model, optimizers[0]))
    plain = whole_step(twin, optimizers[1])
    for _ in range(steps):
        x, y = batch(device), torch.randn(3, 2, device=device)
        close(graphed(x, y), plain(x, y))
        for schedule in schedules:
            schedule.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)
    assert isinstance(optimizers[0].param_groups[0]["lr"], float)
    if (device, make) != ("cpu", sgd):  # SGD reads its rate from memory on a GPU only
        status = graphed.status()
        assert (status.recordings, status.stops) == (1, ()), status
        assert status.replays == steps - 1  # the first made the optimizer's state


def test_autocast_sees_weights_that_change(device: str) -> None:
    model = small_net(device)
    twin = copy.deepcopy(model)
    graphed = torchproof.graph(whole_step(model, adamw(model), autocast=True))
    plain = whole_step(twin, adamw(twin), autocast=True)
    for _ in range(8):
        x, y = batch(device), torch.randn(3, 2, device=device)
        torch.testing.assert_close(
            graphed(x, y), plain(x, y).detach(), rtol=0.05, atol=0.02
        )
    assert graphed.falls_back == []


CHANGES: dict[str, tuple[Make, Callable[[Any], Any]]] = {
    "betas": (adamw, lambda o: o.param_groups[0].update(betas=(0.5, 0.5))),
    "weight decay": (adamw, lambda o: o.param_groups[0].update(weight_decay=0.5)),
    "learning rate": (sgd, lambda o: o.param_groups[0].update(lr=0.5)),
    "state": (adamw, lambda o: o.load_state_dict(copy.deepcopy(o.state_dict()))),
    "method": (sgd, lambda o: setattr(o, "step", lambda: None)),
}


@pytest.mark.parametrize(
    ("name", "device"),
    [("state", "cpu"), *(pytest.param(n, "cuda", marks=GPU) for n in CHANGES)],
)
def test_a_change_of_an_optimizer_is_seen(name: str, device: str) -> None:
    """On the CPU there are more changes in the table of mechanisms."""
    make, change = CHANGES[name]
    model = small_net(device)
    twin = copy.deepcopy(model)
    optimizers = make(model), make(twin)
    graphed = torchproof.graph(whole_step(model, optimizers[0]))
    plain = whole_step(twin, optimizers[1])
    for number in range(6):
        if number == 3:
            for optimizer in optimizers:
                change(optimizer)
        x, y = batch(device), torch.randn(3, 2, device=device)
        close(graphed(x, y), plain(x, y))
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        close(one.detach(), other)
    assert graphed.status().replays >= 4, graphed.status()


def test_a_learning_rate_that_a_step_only_reads(device: str) -> None:
    weight = torch.ones(3, device=device, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.5)

    def step(x: Tensor) -> Tensor:
        return x * optimizer.param_groups[0]["lr"]

    graphed = torchproof.graph(step)
    ones = torch.ones(3, device=device)
    for rate in (0.5, 0.25, 0.125):
        optimizer.param_groups[0]["lr"] = rate
        assert torch.equal(graphed(ones), ones * rate)
    assert graphed.status().replays == 3


def test_a_gradient_scaler_makes_its_numbers_before_it_is_recorded(device: str) -> None:
    scaler = torch.amp.GradScaler(device, init_scale=4.0)

    def step(x: Tensor) -> Tensor:
        return scaler.scale(x.sum())

    ones = torch.ones(3, device=device)
    graphed = torchproof.graph(step, (ones,))
    for _ in range(2):
        assert graphed(ones) == 12
    assert (graphed.status().plain_calls, graphed.status().replays) == (1, 1)


def test_a_scaler_with_a_fused_optimizer(device: str) -> None:
    model = small_net(device)
    twin = copy.deepcopy(model)

    def step_of(net: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
        optimizer, scaler = fused_adamw(net), torch.amp.GradScaler(device)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            with torch.autocast(device, torch.float16):
                loss = F.mse_loss(net(x).float(), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        return step

    graphed, plain = torchproof.graph(step_of(model)), step_of(twin)
    for _ in range(20):
        x, y = batch(device), torch.randn(3, 2, device=device)
        torch.testing.assert_close(
            graphed(x, y), plain(x, y).detach(), rtol=0.05, atol=0.02
        )
    assert graphed.falls_back == []
