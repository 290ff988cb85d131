"""A recurrent cell in a Python loop: each step is compiled on its own."""

import torch
from torch import nn


class MinimalGatedCell(nn.Module):
    """A cell with one gate."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.gate = nn.Linear(inputs + size, size)
        self.candidate = nn.Linear(inputs + size, size)

    def forward(self, given: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(self.gate(torch.cat([given, state], dim=-1)))
        mixed = torch.cat([given, gate * state], dim=-1)
        return (1 - gate) * state + gate * torch.tanh(self.candidate(mixed))


class TidePredictor(nn.Module):
    """The level of the sea for the hours to come."""

    def __init__(self, gauges: int = 4, size: int = 16, hours: int = 6) -> None:
        super().__init__()
        self.size = size
        self.normalise = nn.LayerNorm(gauges)
        self.cell = MinimalGatedCell(gauges, size)
        self.hours = nn.Linear(size, hours)

    def forward(self, levels: torch.Tensor) -> torch.Tensor:
        levels = self.normalise(levels)
        state = levels.new_zeros(levels.shape[0], self.size)
        for hour in range(levels.shape[1]):
            state = self.cell(levels[:, hour], state)
        return self.hours(state)


def make():
    return TidePredictor().eval(), [(torch.randn(2, 72, 4),) for _ in range(3)]
