"""Programs of different size whose check is timed (benchmarks/check_cost.py)."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Clipped(nn.Module):
    """A break in each call, and a recompile for the other batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor, limit: float) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        largest = x.abs().max().item()
        if largest > limit:
            x = x * (limit / largest)
        return x.sum(-1)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = (3, 16, 32, 64)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, after, 3, stride=2, padding=1),
                nn.BatchNorm2d(after),
                nn.SiLU(),
            )
            for before, after in itertools.pairwise(sizes)
        )
        self.head = nn.Linear(sizes[-1], 10)

    def forward(self, images: Tensor) -> Tensor:
        for block in self.blocks:
            images = block(images)
        return self.head(images.mean((2, 3)))


def perceptron(batch: int = 4) -> tuple[nn.Module, list[tuple[Tensor]]]:
    return Perceptron().eval(), [(torch.randn(batch, 16),) for _ in range(3)]


def clipped(batch: int = 4) -> tuple[nn.Module, list[tuple[Tensor, float]]]:
    sizes = (batch, batch, batch + 3, batch)
    return Clipped().eval(), [(torch.randn(size, 32), 0.5) for size in sizes]


def convnet(batch: int = 4) -> tuple[nn.Module, list[tuple[Tensor]]]:
    return ConvNet().eval(), [(torch.randn(batch, 3, 32, 32),) for _ in range(3)]


def bert(batch: int = 2, sequence: int = 64) -> tuple[nn.Module, list[dict[str, Any]]]:
    """The class of transformers, four narrow layers."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=128,
        vocab_size=1000,
    )
    calls = [{"input_ids": torch.randint(0, 1000, (batch, sequence))} for _ in range(3)]
    return BertModel(config).eval(), calls
