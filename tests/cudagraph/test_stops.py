"""Steps that cannot be replayed: said why and where, and run without a recording."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.runtime.cudagraph import capture, recorder
from torchproof.runtime.cudagraph.graph_status import Stop


def asks_for_a_number(x: Tensor) -> Tensor:
    return x * x.sum().item()


def branches(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x
    return -x


def finds_nonzero(x: Tensor) -> Tensor:
    return x.nonzero()


def only(step: Callable[..., Any], *args: Any) -> Stop:
    """The first reason, after the step has answered as it would have."""
    graphed = torchproof.graph(step)
    assert torch.equal(graphed(*args), step(*args))
    status = graphed.status()
    assert status.plain_calls == 1
    assert status.replays == 0
    return status.stops[0]


@pytest.mark.parametrize(
    ("step", "word"),
    [
        (asks_for_a_number, ".item()"),
        (branches, "if"),
        (finds_nonzero, "nonzero"),
    ],
)
def test_the_line_that_waits_is_named(step: Callable[..., Any], word: str) -> None:
    stop = only(step, torch.tensor([1.0, 2.0, 3.0]))
    assert stop.kind == "host_sync"
    assert word in stop.reason
    first = step.__code__.co_firstlineno
    assert (stop.file, stop.line) == (__file__, first + 1)


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
