"""Deploy packs that nothing was compiled for: a manifest, a recipe, and small files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchproof import packs
from torchproof.records import schema
from torchproof.runtime.loading import compatibility, example_inputs
from torchproof.strategies.recipe import FILE, Recipe
from torchproof.strategies.recipe.fingerprint import fingerprint
from torchproof.strategies.recipe.matching import environment_here
from torchproof.strategies.strategy import parse


class Net(nn.Module):
    """Has what a call can change: a buffer, a mode, random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.inner(x)).relu()


CALL = (torch.ones(3, 4),)
WITHOUT_CODE = dataclasses.replace(parse("full"), arguments={"backend": "eager"})


def recipe_of(model: nn.Module) -> Recipe:
    return Recipe(
        WITHOUT_CODE,
        environment=environment_here(model),
        model=fingerprint(model),
    )


def details_of(model: nn.Module, **changes: Any) -> dict[str, Any]:
    call = {
        "inputs": schema.to_plain(example_inputs.describe(CALL)),
        "state": {"training": True, "others": []},
        "gradients": False,
    }
    details = {
        "artifact": "caches",
        "strategy": WITHOUT_CODE.name,
        "train": False,
        "graphs": [],
        "calls": [call],
        "code": {},
        "place": schema.to_plain(compatibility.place_here("cpu")),
    }
    return details | changes


def fabricated(
    dest: Path, model: nn.Module, *, key: bytes | None = None, **changes: Any
) -> Path:
    """A pack for the model, a folder or a .tar.gz, with some details changed."""
    make = packs.archive if dest.name.endswith(".tar.gz") else packs.folder
    with make(dest) as stage:
        recipe_of(model).write(stage.path / FILE)
        cached = stage.path / "caches" / "ab" / "code.py"
        cached.parent.mkdir(parents=True)
        cached.write_text("x = 1\n")
        manifest = packs.Manifest(
            kind="deploy",
            name="net",
            torchproof="0",
            details=details_of(model, **changes),
        )
        stage.seal(manifest, {}, key)
    return dest
