"""An operator of the harbour's own, without the rule that gives its shape."""

import torch
from torch import nn


@torch.library.custom_op("harbour::tide_level", mutates_args=())
def tide_level(height: torch.Tensor, hours: int, scale: float = 1.5) -> torch.Tensor:
    """Heights after some hours."""
    return torch.roll(height, hours, dims=-1) * scale


class TideForecast(nn.Module):
    """The level of the water at each berth."""

    def __init__(self, berths: int = 8) -> None:
        super().__init__()
        self.berths = nn.Linear(berths, berths)
        self.hours = 3

    def forward(self, height: torch.Tensor) -> torch.Tensor:
        moved = torch.ops.harbour.tide_level(self.berths(height), self.hours)
        return torch.relu(moved)


def make():
    return TideForecast().eval(), [(torch.randn(4, 8),) for _ in range(2)]
