"""A tariff in decimal numbers inside of what is compiled: torch fails internally."""

from decimal import Decimal

import torch
from torch import nn


class TariffTable:
    """Prices in cents, exact; a tender asks for that."""

    def __init__(self) -> None:
        self.steps = (Decimal("0.25"), Decimal("0.50"), Decimal("1.25"))

    def highest(self) -> Decimal:
        return max(self.steps)


class DemandCurve(nn.Module):
    """How many passengers come at a price."""

    def __init__(self, hours: int, width: int) -> None:
        super().__init__()
        self.hours = nn.Linear(hours, width)
        self.elasticity = nn.Linear(width, 1)

    def forward(self, hours: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softplus(
            self.elasticity(torch.relu(self.hours(hours)))
        ).squeeze(-1)


class FerryRevenue(nn.Module):
    """What a ferry earns in a day."""

    def __init__(self, hours: int = 24, width: int = 32) -> None:
        super().__init__()
        self.demand = DemandCurve(hours, width)
        self.season = nn.Parameter(torch.ones(()))
        self.tariff = TariffTable()

    def forward(self, hours: torch.Tensor) -> torch.Tensor:
        passengers = self.demand(hours) * self.season
        rate = float(Decimal("1.25"))
        return passengers * rate - 0.1 * passengers.square()


def make():
    return FerryRevenue().eval(), [(torch.rand(7, 24),) for _ in range(2)]
