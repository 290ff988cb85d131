"""Recipes with a graph, applied on a real device by compile and by graph."""

from __future__ import annotations

import copy
import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchproof
from torchproof.strategies.recipe import Recipe
from torchproof.strategies.recipe.fingerprint import fingerprint
from torchproof.strategies.recipe.matching import environment_here
from torchproof.strategies.strategy import parse

# Torch warns of what may be faster; that is not the point here.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

DEVICE = "cuda"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(self.norm(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 64)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def net() -> Net:
    torch.compiler.reset()
    torch.manual_seed(0)
    return Net().to(DEVICE).eval()


def calls(*rows: int) -> list[Tensor]:
    return [torch.randn(count, 8, device=DEVICE) for count in rows]


def written(model: Any, name: str, folder: Path, **more: Any) -> Path:
    made = {"environment": environment_here(model), "model": fingerprint(model)}
    recipe = Recipe(parse(name), **{**made, **more})
    return recipe.write(folder / "torchproof.toml", overwrite=True)


NAMES = ("eager+graph", "full+graph", "regional+graph", "nested+graph")
NAMES += ("core+graph:blocks.1",)


def test_what_is_known_of_the_place(net: Net) -> None:
    found = environment_here(net)
    assert found["device"] == "cuda" and found["cuda"] == torch.version.cuda
    assert found["gpu"] == torch.cuda.get_device_name() and found["triton"]


@pytest.mark.parametrize("name", NAMES)
def test_whole_calls_are_replayed(name: str, net: Net, tmp_path: Path) -> None:
    path = written(net, name, tmp_path)
    model = torchproof.compile(copy.deepcopy(net), recipe=path)
    with torch.no_grad():
        for x in calls(4, 4, 16, 4):
            torch.testing.assert_close(model(x), net(x), rtol=1e-3, atol=1e-3)
    found = torchproof.status(model)
    assert found.strategy == name and found.compiled_calls == 4
    assert found.graph is not None and not found.graph["stops"], str(found)
    assert found.graph["replays"] == 4 and found.graph["recordings"] == 2
    for each in (model, net):  # with gradients: not replayed, and right
        each.zero_grad()
        each(calls(4)[0] * 0 + 1).square().mean().backward()
    for mine, theirs in zip(model.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        (x,) = calls(4)
        torch.testing.assert_close(model(x), net(x), rtol=1e-3, atol=1e-3)
    found = torchproof.status(model)
    assert not found.fallbacks and not (found.graph or {})["stops"], str(found)
    assert (found.graph or {})["replays"] == 5


@pytest.mark.parametrize("name", NAMES)
def test_whole_training_steps_are_replayed(name: str, net: Net, tmp_path: Path) -> None:
    net.train()
    path = written(net, name, tmp_path, train=True)
    model = copy.deepcopy(net)
    step = torchproof.graph(model, recipe=path)
    for x in calls(4, 4, 4):
        for each in (model, net):
            each.zero_grad()
        answer = step(x)
        expected = net(x)
        expected.float().mean().backward()
        torch.testing.assert_close(answer, expected.detach(), rtol=1e-3, atol=1e-3)
        for mine, theirs in zip(model.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)
    assert not step.falls_back
    assert step.status().replays == 3


def test_the_switches_of_a_recipe_are_recorded_with(net: Net, tmp_path: Path) -> None:
    path = written(net, "full+graph", tmp_path)
    text = path.read_text() + "\n[compile.options]\ncoordinate_descent_tuning = true\n"
    path.write_text(text)
    model = torchproof.compile(copy.deepcopy(net), recipe=path)
    with torch.no_grad():
        (x,) = calls(4)
        torch.testing.assert_close(model(x), net(x), rtol=1e-3, atol=1e-3)
    found = torchproof.status(model)
    assert found.graph is not None and found.graph["replays"] == 1, str(found)


def test_a_model_is_moved_before_its_first_call(net: Net, tmp_path: Path) -> None:
    path = written(net, "full+graph", tmp_path)
    model = torchproof.compile(copy.deepcopy(net).cpu(), recipe=path)
    model.to(DEVICE)
    with torch.no_grad():
        (x,) = calls(4)
        torch.testing.assert_close(model(x), net(x), rtol=1e-3, atol=1e-3)
    assert torchproof.status(model).strategy == "full+graph"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"gpu": "NVIDIA Imaginary"}, "GPU NVIDIA Imaginary"),
        ({"cuda": "1.0"}, "CUDA 1.0"),
        ({"triton": "0.1"}, "Triton 0.1"),
        ({"device": "cpu"}, "device cpu"),
    ],
)
def test_another_place(
    change: Any, why: str, net: Net, caplog: pytest.LogCaptureFixture
) -> None:
    made = {"environment": environment_here(net), "model": fingerprint(net)}
    recipe = Recipe(parse("full+graph"), **made)
    environment = {**recipe.environment, **change}
    recipe = dataclasses.replace(recipe, environment=environment)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "torchproof"):
        model = torchproof.compile(copy.deepcopy(net), recipe=recipe)
        (x,) = calls(4)
        torch.testing.assert_close(model(x), net(x), rtol=0, atol=0)
    found = torchproof.status(model)
    assert found.strategy == "eager" and why in found.why
    assert len(caplog.records) == 1
