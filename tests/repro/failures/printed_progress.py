"""A regression network that reports its activations while it runs."""

import torch
from torch import nn

REPORT_EVERY = 1


class SpectralFeatures(nn.Module):
    """Random Fourier features of sensor readings."""

    def __init__(self, readings: int, features: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(readings, features))
        self.register_buffer("phases", torch.rand(features) * 6.28)

    def forward(self, readings: torch.Tensor) -> torch.Tensor:
        return torch.cos(readings @ self.frequencies + self.phases)


class TurbineRegressor(nn.Module):
    def __init__(self, readings: int = 6, features: int = 48) -> None:
        super().__init__()
        self.spectrum = SpectralFeatures(readings, features)
        self.middle = nn.Sequential(
            nn.Linear(features, 32),
            nn.SiLU(),
            nn.Linear(32, 32),
            nn.SiLU(),
        )
        self.mean = nn.Linear(32, 1)
        self.deviation = nn.Linear(32, 1)
        self.seen = 0

    def announce(self, hidden: torch.Tensor) -> None:
        # Somebody at the turbine watches this on a terminal.
        print("turbine activations", hidden.shape, hidden.abs().max())

    def forward(self, readings: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.middle(self.spectrum(readings))
        if REPORT_EVERY:
            self.announce(hidden)
        mean = self.mean(hidden)
        deviation = torch.nn.functional.softplus(self.deviation(hidden))
        return mean.squeeze(-1), deviation.squeeze(-1)


def make():
    return TurbineRegressor(), [(torch.randn(16, 6),) for _ in range(2)]
