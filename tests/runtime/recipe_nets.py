"""A model to make recipes for, and recipes as a search makes them."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import nn

import torchproof
from torchproof.strategies.recipe import Recipe
from torchproof.strategies.recipe.fingerprint import fingerprint
from torchproof.strategies.recipe.matching import environment_here
from torchproof.strategies.strategy import parse


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x).tanh() * scale.sum()


class Net(nn.Module):
    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, scale=x)
        return self.head(x)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[0](x, x)


ROWS = (3, 5, 7)


def calls() -> list[tuple[torch.Tensor]]:
    return [(torch.randn(rows, 4),) for rows in ROWS]


def recipe_for(model: Any, name: str, **more: Any) -> Recipe:
    """As a search makes one, with a backend that compiles at once."""
    strategy = parse(name)
    plan = strategy.plan(copy.deepcopy(model), calls())
    if strategy.compiles:
        arguments = {**strategy.arguments, "backend": "aot_eager"}
        strategy = dataclasses.replace(strategy, arguments=arguments)
    made = {
        "plan": plan,
        "run": "20261115-0102-net",
        "lines": strategy.source("model", plan),
        "environment": environment_here(model),
        "model": fingerprint(model),
    }
    return Recipe(strategy, **{**made, **more})


def followed(model: Any, recipe: Any, **more: Any) -> Any:
    model = torchproof.compile(model, recipe=recipe, **more)
    assert torchproof.status(model).recipe["followed"]  # type: ignore[index]
    return model


def parts(model: nn.Module) -> list[str]:
    """The modules that have something else in the place of their forward."""
    return [path for path, each in model.named_modules() if "forward" in vars(each)]
