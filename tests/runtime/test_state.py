"""What a forward pass changed is put back, in place, and nothing else is touched."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from torchproof.runtime.forward_state import save_state
from torchproof.runtime.tensors import storages


class Meddler(nn.Module):
    """Changes everything it can reach."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.linear.weight
        self.register_buffer("count", torch.zeros(4))
        self.register_buffer("tail", self.count[2:], persistent=False)
        self.register_buffer("mean", torch.ones(2))
        self.constant = torch.full((2,), 5.0)
        self.seen = ["first"]
        self.calls = 0
        self.limit: float | None = None

    def forward(self, x: torch.Tensor, *, more: dict[str, object]) -> torch.Tensor:
        self.count += 1
        self.tail.mul_(7)
        self.mean = self.mean * 2
        self.constant.add_(1)
        self.seen.append("again")
        self.calls += 1
        self.limit = 3.0
        self.added = torch.ones(1)
        self.register_buffer("late", torch.ones(1), persistent=False)
        self.linear.weight.data.mul_(2)
        self.linear.bias.data = torch.zeros(3)
        self.linear.bias.grad = torch.ones(3)
        if self.linear.weight.grad is not None:
            self.linear.weight.grad.zero_()
        x.detach().add_(torch.rand_like(x.detach()))
        more["cache"].keys.append(x)
        more["cache"].first.add_(1)
        more["list"][0].add_(1)
        more["new"] = 1
        random.random()
        np.random.rand()
        torch.rand(1, generator=more["generator"])
        return self.linear(x)


def call_of() -> tuple[tuple[torch.Tensor], dict[str, dict[str, object]]]:
    cache = SimpleNamespace(keys=[], first=torch.ones(2))
    more = {
        "cache": cache,
        "list": [torch.ones(2)],
        "generator": torch.Generator().manual_seed(1),
    }
    base = torch.arange(12.0).reshape(2, 6)
    return (base[:, 3:],), {"more": more}


def everything(model: nn.Module, args: tuple, kwargs: dict) -> list[object]:
    """A deep, comparable picture of all that may change."""
    more = kwargs["more"]
    names = {k: v for k, v in vars(model).items() if not k.startswith("_")}
    tensors = [
        *model.parameters(),
        *(p.grad for p in model.parameters() if p.grad is not None),
        *model.buffers(),
        *args,
        *more["list"],
        *more["cache"].keys,
        more["cache"].first,
        model.constant,
    ]
    return [
        [tensor.tolist() for tensor in tensors],
        [tensor.data_ptr() for tensor in tensors],
        [tensor._version for tensor in tensors],
        {k: str(v) for k, v in names.items()},
        sorted(more),
        sorted(name for name, _ in model.named_buffers()),
        sorted(model.state_dict()),
        torch.get_rng_state().tolist(),
        more["generator"].get_state().tolist(),
        random.getstate(),
        str(np.random.get_state()),
    ]


def test_everything_a_forward_pass_changes_is_put_back() -> None:
    model, (args, kwargs) = Meddler(), call_of()
    model.linear.weight.grad = torch.full((3, 3), 2.0)
    objects = [*model.parameters(), *model.buffers(), model.constant, model.seen]
    state, before = save_state(model, args, kwargs), everything(model, args, kwargs)
    assert state.unprotected == ()
    model(*args, **kwargs)
    assert everything(model, args, kwargs) != before
    assert state.restore() == ()
    assert everything(model, args, kwargs) == before
    after = [*model.parameters(), *model.buffers(), model.constant, model.seen]
    assert all(one is other for one, other in zip(objects, after, strict=True))
    # Views and ties are what they were: a change of one is one of the other.
    model.count[2] = 9
    assert model.tail[0] == 9
    assert model.tied.weight is model.linear.weight


def test_a_pending_backward_pass_still_works_after_a_restore() -> None:
    buffer = torch.ones(3)
    weight = torch.ones(3, requires_grad=True)
    pending = (weight * buffer).sum()
    state = save_state(None, (buffer,), {})
    buffer.mul_(2)
    state.restore()
    pending.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [1, 1, 1]


def test_parameters_that_do_not_fit_are_reported_and_their_change_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    monkeypatch.setattr(storages, "free_bytes", lambda device: 10)
    state = save_state(model, (x,), {})
    assert "a copy of" in state.unprotected[0]
    model(x)
    assert state.restore() == ()
    assert model.num_batches_tracked == 0
    with torch.no_grad():
        model.weight.add_(1)
    assert state.restore() == ("parameter weight",)
    assert model.weight.tolist() == [2, 2, 2]
