"""Shallow copies of a compiled module behave as those of the module itself."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from twins import Block, assert_alike, compiled, sample

import torchproof

# Dynamo hides it where warnings are shown, not where they are errors.
pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.finish(self.blocks(x))

    def finish(self, x: Tensor) -> Tensor:
        return x.sum(-1) * self.scale


STRATEGIES = ("full", "regional", "core:finish", "eager")
SOME = (
    "full",
    *(pytest.param(each, marks=pytest.mark.slow) for each in STRATEGIES[1:]),
)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("calls", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_copy_has_its_own_attributes_and_shares_the_rest(
    strategy: str, calls: int
) -> None:
    plain, model = Stack(), compiled(Stack(), strategy=strategy)
    model.load_state_dict(plain.state_dict())
    for _ in range(calls):
        model(sample())
    plain_copy, twin = copy.copy(plain), copy.copy(model)
    for one in (plain_copy, twin):
        one.scale = 3.0
    for _ in range(2):
        assert_alike(plain_copy, twin, sample())
        assert_alike(plain, model, sample())
    with torch.no_grad():  # parameters and blocks are shared
        for one in (plain, twin):
            one.get_parameter("blocks.1.mix.weight").zero_()
    assert_alike(plain_copy, twin, sample())
    assert_alike(plain, model, sample())
    assert torchproof.status(model).calls == calls + 3
    told = torchproof.status(twin)
    assert told.calls == 3 and not told.fallbacks, told
    assert bool(told.compiled_calls) is (strategy == "full"), told
    if strategy in ("regional", "core:finish"):
        assert "copy.copy" in told.why and strategy in told.why
        assert torchproof.status(model).compiled_calls, "it lost its compiled parts"


class Own(nn.Module):
    """Its forward is an attribute of the instance, bound to it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.forward = self.run

    def run(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_a_copy_keeps_what_eager_would_call() -> None:
    plain, model = Own(), compiled(Own())
    copies = copy.copy(plain), copy.copy(model)
    for one in copies:
        one.scale = 5.0  # eager calls the method of the original
    assert_alike(*copies, sample())
    del model.forward
    assert copies[1].forward.owner is copies[1]


def test_the_options_of_a_copy_are_those_of_the_model() -> None:
    seen: list[str] = []
    model = compiled(
        Stack(), deadline=77, on_event=lambda kind, record: seen.append(kind)
    )
    twin = copy.copy(model)
    twin(sample())
    assert seen == ["compilation"]
    assert torchproof.status(twin).deadline_s == 77
    assert not torchproof.status(model).calls


# -- nn.DataParallel -------------------------------------------------------------------


def replica_of(model: nn.Module) -> Any:
    """What `nn.parallel.replicate` does for each GPU, without a GPU."""
    every: list[Any] = list(model.modules())
    made = {module: module._replicate_for_data_parallel() for module in every}
    for module, replica in made.items():
        for name, child in module.named_children():
            setattr(replica, name, made[child])
        for name, parameter in module.named_parameters(recurse=False):
            setattr(replica, name, parameter * 2)
    return made[model]


@pytest.mark.parametrize("strategy", SOME)
def test_copies_of_data_parallel_run_eager_with_their_own_parameters(
    strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain, model = Stack(), compiled(Stack(), strategy=strategy)
    model.load_state_dict(plain.state_dict())
    model(sample())
    expected = replica_of(plain)(sample())
    with caplog.at_level(logging.WARNING, "torchproof"):
        for _ in range(2):
            replica = replica_of(model)
            torch.testing.assert_close(replica(sample()), expected)
    (line,) = [r.getMessage() for r in caplog.records if r.name == "torchproof"]
    assert "nn.DataParallel" in line and "DistributedDataParallel" in line
    (fallback,) = torchproof.status(model).fallbacks
    assert fallback.kind == "unsupported"
    assert_alike(plain, model, sample())


@pytest.mark.gpu
def test_torchs_own_replicas_run_on_a_gpu() -> None:
    plain, model = Stack().cuda(), compiled(Stack().cuda())
    model.load_state_dict(plain.state_dict())
    x = sample().cuda()
    (replica,) = nn.parallel.replicate(model, [0])
    torch.testing.assert_close(replica(x), plain(x))
    assert_alike(nn.DataParallel(plain, [0]), nn.DataParallel(model, [0]), x)


def test_data_parallel_without_copies_runs_compiled() -> None:
    plain, model = Stack(), compiled(Stack())
    model.load_state_dict(plain.state_dict())
    parallel = nn.DataParallel(model)
    if not parallel.device_ids:  # no GPU: it calls the model itself
        assert_alike(nn.DataParallel(plain), parallel, sample())
        assert torchproof.status(parallel).compiled_calls == 1
