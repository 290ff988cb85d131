"""The strategy that `compile` chooses, recompiles, fallbacks and retries."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from twins import Stack, compiled

import torchproof

pytestmark = pytest.mark.usefixtures("fresh_compiler")


# -- strategies ------------------------------------------------------------------------


def test_blocks_of_a_region_share_what_is_compiled() -> None:
    model, x = Stack(), torch.randn(5, 4)
    expected = model(x)
    compiled(model, strategy="regional")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(model(x), expected)
    status = torchproof.status(model)
    assert status.strategy == "regional"
    [only] = status.compilations
    assert only.function.split()[0] == "Block.forward"
    assert only.shapes == {"x": (5, 4)}
    # The first call shows where the blocks are, and runs eager.
    assert (status.calls, status.compiled_calls) == (3, 2)


def test_without_blocks_the_whole_is_compiled() -> None:
    model = compiled(nn.Linear(3, 3), strategy="regional")
    for _ in range(2):
        model(torch.ones(1, 3))
    status = torchproof.status(model)
    assert (status.strategy, status.compiled_calls) == ("full", 1)


@pytest.mark.parametrize(
    ("billions", "strategy"),
    [(9.99, "full"), (10, "regional"), (39.48, "regional"), (40, "eager")],
)
def test_the_size_of_a_model_decides_where_nothing_else_does(
    billions: float, strategy: str
) -> None:
    rows = round(billions * 1e4)
    found = torchproof.plan(nn.Linear(100_000, rows, bias=False, device="meta"))
    assert (found.strategy, found.parameters) == (strategy, billions * 1e9)
    assert found.bytes == 4 * billions * 1e9
    json.dumps(found.to_json())


def test_tied_weights_count_once_and_functions_and_lazy_modules_have_plans() -> None:
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("table", torch.zeros(8, dtype=torch.float64))
    found = torchproof.plan(model)
    assert (found.parameters, found.bytes) == (100, 100 * 4 + 8 * 8)
    found = torchproof.plan(torch.sin)
    assert (found.strategy, found.parameters) == ("full", None)
    lazy = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4))
    assert torchproof.plan(lazy).parameters == 20


def test_limits_of_sizes_are_arguments() -> None:
    limits = {"full_below": 10, "regional_below": 1000}
    assert torchproof.plan(Stack(), **limits).strategy == "regional"
    model = compiled(Stack(), full_below=10, regional_below=20)
    model(torch.ones(2, 4))
    status = torchproof.status(model)
    assert (status.strategy, status.compiled_calls) == ("eager", 0)


def test_shards_count_as_a_whole() -> None:
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    store = FakeStore()
    torch.distributed.init_process_group("fake", rank=1, world_size=4, store=store)
    try:
        mesh, model = DeviceMesh("cpu", range(4)), nn.Module()
        whole = distribute_tensor(torch.zeros(8, 5), mesh, [Shard(0)])
        model.register_parameter("weight", nn.Parameter(whole))
        assert torchproof.plan(model).parameters == 40
    finally:
        torch.distributed.destroy_process_group()


# -- recompiling -----------------------------------------------------------------------


class Changing(nn.Module):
    """Computes with an attribute that each call changes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.number, self.name = kind, 1, "a"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "number":
            self.number += 1
            return x * self.number
        if self.kind == "name":
            self.name += "a"
            return x * len(self.name)
        return x * 2


@pytest.mark.parametrize("kind", ["number", "size"])
def test_what_varies_is_generalised_once(kind: str) -> None:
    model, twin = compiled(Changing(kind), dynamic=False), Changing(kind)
    for size in range(2, 14):
        x = torch.ones(size if kind == "size" else 3)
        assert torch.equal(model(x), twin(x))
    status = torchproof.status(model)
    assert status.recompiles == 3
    assert status.compiled_calls == status.calls == 12
    assert not status.fallbacks


def test_a_storm_ends_in_eager_with_its_cause() -> None:
    model, twin = compiled(Changing("name"), recompile_limit=5), Changing("name")
    for _ in range(10):
        x = torch.ones(3)
        assert torch.equal(model(x), twin(x))
    status = torchproof.status(model)
    assert (status.recompiles, status.compiled_calls) == (5, 6)
    [storm] = status.fallbacks
    assert storm.kind == "storm" and "self.name == " in storm.why


# -- failures and retries --------------------------------------------------------------


@torch.library.custom_op("torchproof_tests::incomplete", mutates_args=())
def incomplete(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Partly(nn.Module):
    """Its last operation cannot be traced, for as long as it has no fake kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Stack()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return incomplete(self.body(x))


def test_what_fails_runs_eager_once_and_is_compiled_on_retry() -> None:
    model = Partly().requires_grad_(False)
    x = torch.randn(2, 4)
    expected = model(x)
    compiled(model)
    for _ in range(3):
        torch.testing.assert_close(model(x), expected)
    assert model.calls == 4
    status = torchproof.status(model)
    assert [item.kind for item in status.fallbacks] == ["compile error"]
    # Outside of what failed, frames are compiled.
    assert any("Stack.forward" in item.function for item in status.compilations)

    incomplete.register_fake(torch.empty_like)
    torchproof.retry(model)
    torch.testing.assert_close(model(x), expected)
    status = torchproof.status(model)
    assert not status.fallbacks
    assert any("Partly.forward" in item.function for item in status.compilations)
