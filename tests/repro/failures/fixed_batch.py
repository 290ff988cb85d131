"""A batch that is declared dynamic, and compared with a number in the code."""

import torch
from torch import nn


class StationPooling(nn.Module):
    """Pools readings of stations; the full network of six is weighted by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weigh = nn.Linear(width, 1)
        self.register_buffer("by_hand", torch.linspace(0.5, 1.5, 6).view(6, 1, 1))

    def forward(self, stations: torch.Tensor) -> torch.Tensor:
        weights = self.weigh(stations).sigmoid()
        if stations.shape[0] == 6:
            weights = weights * self.by_hand
        return (stations * weights).sum(dim=0) / weights.sum(dim=0)


class AvalancheForecast(nn.Module):
    """Danger of avalanches for the next days, from stations on a mountain."""

    def __init__(self, sensors: int = 5, width: int = 20, days: int = 3) -> None:
        super().__init__()
        self.sensors = nn.Linear(sensors, width)
        self.through_time = nn.Conv1d(width, width, kernel_size=3, padding=1)
        self.pooling = StationPooling(width)
        self.days = nn.Linear(width, days)

    def forward(self, stations: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.sensors(stations))
        hidden = self.through_time(hidden.transpose(1, 2)).transpose(1, 2)
        return self.days(self.pooling(hidden)[-1])


def make():
    stations = torch.randn(6, 8, 5)
    torch._dynamo.mark_dynamic(stations, 0)
    return AvalancheForecast().eval(), [(stations,)]
