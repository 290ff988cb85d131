"""The strategy follows from the number of parameters, wherever they are."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from torchproof.runtime.policy import plan


def model_of(billions: float) -> nn.Module:
    """On the meta device: shapes without memory."""
    rows = int(billions * 1e9 / 1e5)
    return nn.Linear(100_000, rows, bias=False, device="meta")


@pytest.mark.parametrize(
    ("billions", "strategy"),
    [
        (0.1, "full"),
        (9.99, "full"),
        (10, "regional"),
        (39.48, "regional"),
        (40, "eager"),
        (70, "eager"),
    ],
)
def test_sizes(billions: float, strategy: str) -> None:
    found = plan(model_of(billions))
    assert found.strategy == strategy
    assert found.parameters == billions * 1e9
    assert found.bytes == 4 * billions * 1e9
    assert str(found).startswith(f"{strategy}: ")
    if billions > 1:
        assert f"{billions:g} billion parameters" in found.why
    json.dumps(found.to_json())


def test_thresholds_are_arguments() -> None:
    model = nn.Linear(10, 10)
    assert plan(model, full_below=100).strategy == "regional"
    assert plan(model, full_below=100, regional_below=110).strategy == "eager"
    assert plan(model, full_below=111).strategy == "full"


def test_tied_weights_count_once_and_buffers_are_no_parameters() -> None:
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("table", torch.zeros(8, dtype=torch.float64))
    assert plan(model).parameters == 100
    assert plan(model).bytes == 100 * 4 + 8 * 8


def test_a_function_has_no_count() -> None:
    found = plan(torch.sin)
    assert (found.strategy, found.parameters, found.bytes) == ("full", None, None)


def test_a_lazy_module_counts_what_there_is() -> None:
    assert plan(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4))).parameters == 20


def test_shards_count_as_a_whole() -> None:
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group(
        "fake", rank=1, world_size=4, store=FakeStore()
    )
    try:
        mesh = DeviceMesh("cpu", range(4))
        whole = distribute_tensor(torch.zeros(8, 5), mesh, [Shard(0)])
        model = nn.Module()
        model.register_parameter("weight", nn.Parameter(whole))
        assert model.weight.to_local().numel() == 10
        assert (plan(model).parameters, plan(model).bytes) == (40, 160)
    finally:
        torch.distributed.destroy_process_group()
