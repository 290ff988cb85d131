"""Steps that cannot be replayed: said why and where, and run without a recording."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime.cudagraph import capture, recorder
from torchproof.runtime.cudagraph.graph_status import Stop

SCALE = torch.tensor(2.0)


def item(x: Tensor) -> Tensor:
    return x * x.sum().item()


def branch(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x
    return -x


def find(x: Tensor) -> Tensor:
    return x.nonzero()


def to_host(x: Tensor) -> Tensor:
    return x + x.cpu().mean().to(x.device)


def show(x: Tensor) -> Tensor:
    str(x)
    return x + 1


def allocate(x: Tensor) -> Tensor:
    return x + torch.ones(3).to(x.device)


def wait(x: Tensor) -> Tensor:
    torch.cuda.synchronize()
    return x + 1


def host_number(x: Tensor) -> Tensor:
    return x * (SCALE + 1)


def host_item(x: Tensor) -> Tensor:
    return x * SCALE.item()


WAITS = ((item, ".item()"), (branch, "if"), (find, "nonzero"))
ON_GPU = (item, to_host, find, show, allocate, wait, host_number, host_item)


def only(step: Callable[..., Any], *args: Any) -> Stop:
    """The first reason, after the step has answered as it would have."""
    graphed = torchproof.graph(step)
    for number in (2.0, 3.0):
        SCALE.fill_(number)
        assert torch.equal(graphed(*args), step(*args))
    assert graphed.status().replays == 0
    return graphed.status().stops[0]


@pytest.mark.parametrize(
    ("step", "word", "device"),
    [
        *((*row, "cpu") for row in WAITS),
        *(pytest.param(step, "", "cuda", marks=pytest.mark.gpu) for step in ON_GPU),
    ],
)
def test_the_line_that_stops_a_recording_is_named(
    step: Callable[..., Any], word: str, device: str
) -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device=device)
    stop = only(step, x)
    assert word in stop.reason and (device == "cuda" or stop.kind == "host_sync")
    assert (stop.file, stop.line) == (__file__, step.__code__.co_firstlineno + 1)
    # Afterwards everything still works, random numbers too.
    torch.randn(3, device=device)
    other = torchproof.graph(torch.sin, (x,))
    torch.testing.assert_close(other(x), x.sin())
    assert other.falls_back == []


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "home_of", capture.home_of)
    graphed = torchproof.graph(nn.Linear(3, 3), (torch.ones(2, 3),))
    assert graphed(torch.ones(2, 3)).shape == (2, 3)
    assert "CUDA" in graphed.falls_back[0]


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_tensors_whose_memory_cannot_be_watched() -> None:
    table = torch.eye(3).to_sparse()

    def step(x: Tensor) -> Tensor:
        return torch.sparse.mm(table, x)

    stop = only(step, torch.ones(3, 2))
    assert "table" in stop.reason and "torch.sparse_coo" in stop.reason
    graphed = torchproof.graph(nn.LazyLinear(2))
    assert graphed(torch.ones(4, 3)).shape == (4, 2)
    assert "UninitializedParameter" in graphed.falls_back[0]


def test_what_breaks_off_is_undone() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x).sum()
            y.backward()
            raise RuntimeError("too late")

    model, twin = Broken(), Broken()
    x = torch.randn(2, 3)
    for step in (torchproof.graph(model.forward), twin.forward):
        with pytest.raises(RuntimeError, match="too late"):
            step(x)
    assert int(model.norm.num_batches_tracked) == 1  # once, as in eager
    assert model.norm.weight.grad is not None
    torch.testing.assert_close(model.norm.weight.grad, twin.norm.weight.grad)


def test_a_reason_is_logged_once(device: str, caplog: pytest.LogCaptureFixture) -> None:
    def step(x: Tensor, y: Any) -> Tensor:
        return x + len(y)

    graphed = torchproof.graph(step)
    for size in (2, 3):
        graphed(torch.ones(size, device=device), y={1, 2})
    (stop,) = graphed.status().stops
    assert stop.kind == "input" and stop.reason.startswith("argument.y is a set")
    assert caplog.text.count(stop.reason) == 1


@pytest.mark.filterwarnings("error:The .grad attribute")
def test_a_step_may_write_results_with_gradients_into_its_state(device: str) -> None:
    layer = torch.nn.Linear(3, 3).to(device)
    cache = torch.zeros(2, 3, device=device)

    def step(x: Tensor) -> Tensor:
        cache.copy_(layer(x))
        return cache * 2

    graphed = torchproof.graph(step)
    for _ in range(3):
        x = torch.randn(2, 3, device=device)
        torch.testing.assert_close(graphed(x), layer(x).detach() * 2)
    assert graphed.status().replays == 3
