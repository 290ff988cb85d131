"""Small models with repeated blocks, and recipes for them."""

from __future__ import annotations

import copy
import dataclasses
import time
from typing import Any

import torch
from torch import Tensor, nn
from twins import Block

import torchproof
from torchproof.strategies import Recipe, environment_here, fingerprint, parse


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def spin(*_: Any) -> None:
    """Takes longer than the deadlines of tests that use it."""
    until = time.monotonic() + 6
    while time.monotonic() < until:
        pass


def close(actual: Tensor | None, expected: Tensor | None) -> None:
    assert actual is not None and expected is not None
    torch.testing.assert_close(actual, expected.detach(), rtol=2e-3, atol=2e-4)


def close_gradients(one: nn.Module, other: nn.Module) -> None:
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None:
            close(mine.grad, theirs.grad)


def recipe_for(model: nn.Module, name: str, **more: Any) -> Recipe:
    made = {"environment": environment_here(model), "model": fingerprint(model)}
    return Recipe(parse(name), **{**made, **more})


def without_code(recipe: Recipe) -> Recipe:
    """The recipe with a backend whose operations the test double can record."""
    strategy = recipe.strategy
    if not strategy.compiles:
        return recipe
    # Regions are taken apart by AOTAutograd: "eager" cannot train them.
    backend = "aot_eager" if strategy.form == "nested" else "eager"
    arguments = {**strategy.arguments, "backend": backend}
    strategy = dataclasses.replace(strategy, arguments=arguments)
    return dataclasses.replace(recipe, strategy=strategy)


def applied(
    name: str, kind: type[nn.Module] = Net, device: str = "cpu", **settings: Any
) -> tuple[nn.Module, nn.Module]:
    """A plain model, and a copy that follows a recipe."""
    plain = kind().to(device).eval()
    recipe = recipe_for(plain, name)
    if device == "cpu" and settings.get("wait", True):
        recipe = without_code(recipe)
    return plain, torchproof.compile(copy.deepcopy(plain), recipe=recipe, **settings)
