"""Small models of which tests compile one and leave its twin as it is."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

import torchproof


class Net(nn.Module):
    """Everything a mode, a move or an attribute can change."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 2)
        self.scale = 2.0

    def forward(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
        hidden = torch.relu(self.norm(self.inner(x)))
        return self.head(self.drop(hidden)) * self.scale + shift

    def encode(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x))


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.mix(x))


class Stack(nn.Module):
    """Blocks that feed one another, for a regional strategy, and a method."""

    def __init__(self, block: type[Block] = Block) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(block() for _ in range(3)))
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.finish(self.blocks(x))

    def finish(self, x: Tensor) -> Tensor:
        return x.sum(-1) * self.scale


def compiled(model: Any, **options: Any) -> Any:
    """With AOTAutograd and without generated code, unless `options` say otherwise."""
    return torchproof.compile(model, **{"backend": "aot_eager"} | options)


def twins(model: nn.Module, **options: Any) -> tuple[Any, Any]:
    """The model, and a compiled one of the same state."""
    return model, compiled(copy.deepcopy(model), **options)


def sample(rows: int = 3, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator)


def assert_alike(plain: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """Both give the same answer, from the same random numbers; the compiled one's."""
    torch.default_generator.manual_seed(0)
    expected = plain(*args, **kwargs)
    torch.default_generator.manual_seed(0)
    answer = model(*args, **kwargs)
    torch.testing.assert_close(answer, expected)
    return answer
