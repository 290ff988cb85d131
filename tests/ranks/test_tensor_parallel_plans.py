"""Plans that cannot divide a model, and weights that do not fit, are one clear line."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import torch
from torch import nn

from torchproof.records import UserError
from torchproof.targets import (
    Job,
    calls,
    deferred_weights,
    parallel,
    parse,
    tensor_parallel,
)

RANKS = 3


class Mesh:
    """Only the number of ranks is needed to refuse a plan."""

    def size(self) -> int:
        return RANKS


def net(**attributes: Any) -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 8))
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


@pytest.mark.parametrize(
    ("model", "plan", "message"),
    [
        (net(), None, "Sequential has no plan for tensor parallelism"),
        (net(), ["0"], "is a list"),
        (net(), {"blocks.*": "colwise"}, "blocks.* matches no module"),
        (net(), {"0.weight": "colwise"}, "0.weight is a parameter"),
        (net(), {"1": "colwise"}, "1 is a GELU"),
        (net(), {"0": "diagonal"}, "0 has the style 'diagonal'"),
        (net(), {"2": "colwise"}, "3 ranks cannot divide the 8 features of 2"),
        (net(_tp_plan={"0": "packed_colwise"}), None, "'packed_colwise'"),
        (net(_tp_plan={"layers.*": "colwise"}), None, "names no module of Sequential"),
        (
            net(config=SimpleNamespace(num_key_value_heads=2)),
            {"0": "colwise"},
            "cannot divide the 2 heads of keys and values",
        ),
    ],
)
def test_a_plan_that_divides_nothing_is_refused(
    model: nn.Module, plan: Any, message: str
) -> None:
    with pytest.raises(UserError) as raised:
        tensor_parallel.divide(model, Mesh(), plan)
    assert message in str(raised.value) and len(str(raised.value).splitlines()) == 1


def test_the_share_of_a_rank_has_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks of a machine share its memory; DDP has the whole model on each."""
    job = Job(parse("workload:gpt"), device="cpu", size="tiny", on_rank=True)
    job = replace(job, in_shares=True)
    weights = 924_416 * 4
    free = SimpleNamespace(available=weights)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    for wrap in ("fsdp2", "tp"):
        assert calls.resolved(Job.from_json({**job.to_json(), "wrap": wrap}))
    with pytest.raises(UserError, match="choose a smaller --size"):
        calls.resolved(Job.from_json({**job.to_json(), "wrap": "ddp"}))


class Tied(nn.Module):
    """One weight under two names, a weight with values, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            self.embedding = nn.Embedding(6, 4)
            self.head = nn.Linear(4, 6, bias=False)
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.head.weight = self.embedding.weight
        self.known = nn.Linear(4, 4)
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.full((2,), 3.0))


@pytest.mark.parametrize("wrap", ["none", "fsdp2"])
def test_deferred_weights_keep_ties_and_known_values(wrap: str) -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = Tied()
        known = model.known.weight.detach().clone()
        if wrap == "fsdp2":
            model = cast(Tied, parallel.wrapped(model, wrap, lambda whole: whole))
        else:
            deferred_weights.fill(model, "cpu")
        values = {n: _local(p) for n, p in model.named_parameters()}
        assert model.head.weight is model.embedding.weight
        assert values["known.weight"].equal(known) and model.scale.eq(3).all()
        # `reset_parameters` of a linear layer draws from this range.
        assert 0 < values["blocks.1.weight"].abs().max() <= 0.5
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("wrap", "together"), [(None, 1), ("ddp", 1), ("tp", 4), ("tp+fsdp2", 2)]
)
def test_ranks_that_divide_layers_compute_one_batch(
    wrap: str | None, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    fake = {"store": FakeStore(), "rank": 0, "world_size": 4}
    torch.distributed.init_process_group("fake", **fake)  # type: ignore[arg-type]
    try:
        assert parallel.ranks_per_batch(wrap) == together
    finally:
        torch.distributed.destroy_process_group()


def _local(parameter: Any) -> torch.Tensor:
    tensor: torch.Tensor = getattr(parameter, "to_local", lambda: parameter)()
    return tensor
