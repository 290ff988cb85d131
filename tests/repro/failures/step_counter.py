"""A network that counts its own steps: compiled again until torch gives up."""

import math

import torch
from torch import nn


class CosineTemperature(nn.Module):
    """A temperature that falls with the number of calls."""

    def __init__(self, highest: float, lowest: float, period: int) -> None:
        super().__init__()
        self.highest, self.lowest, self.period = highest, lowest, period
        self.position = 0

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        self.position += 1
        share = 0.5 * (1 + math.cos(math.pi * self.position / self.period))
        return logits / (self.lowest + (self.highest - self.lowest) * share)


class GatedLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.value = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.value(hidden) * torch.sigmoid(self.gate(hidden))


class HarbourPlanner(nn.Module):
    """Chooses a berth for every ship that waits."""

    def __init__(self, ships: int = 12, berths: int = 5, width: int = 24) -> None:
        super().__init__()
        self.describe = nn.Linear(ships, width)
        self.layers = nn.Sequential(*(GatedLayer(width) for _ in range(3)))
        self.berths = nn.Linear(width, berths)
        self.temperature = CosineTemperature(2.0, 0.1, 100)

    def forward(self, ships: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(torch.relu(self.describe(ships)))
        return self.temperature(self.berths(hidden)).softmax(dim=-1)


def make():
    return HarbourPlanner(), [(torch.randn(3, 12),) for _ in range(14)]
