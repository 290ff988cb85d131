"""A diffusion sampler whose loop keeps a history: torch skips the whole function."""

import torch
from torch import nn


class NoiseNetwork(nn.Module):
    """Predicts the noise in a sample at a point of time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed_time = nn.Linear(1, width)
        self.first = nn.Linear(width, 2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, sample: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = sample + self.embed_time(time.view(1, 1))
        return self.second(torch.tanh(self.first(hidden)))


class AnnealingSampler(nn.Module):
    """A few steps of annealed Langevin dynamics."""

    def __init__(self, width: int = 16, steps: int = 5) -> None:
        super().__init__()
        self.network = NoiseNetwork(width)
        self.register_buffer("schedule", torch.linspace(1.0, 0.1, steps))
        self.energies: list[float] = []

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        self.energies.clear()
        for time in self.schedule.unbind():
            predicted = self.network(sample, time)
            sample = sample - 0.5 * time * predicted
            # The dashboard plots how the energy falls.
            self.energies.append(float(sample.square().mean()))
        return sample


class ImageSketcher(nn.Module):
    """Samples, then paints."""

    def __init__(self) -> None:
        super().__init__()
        self.sampler = AnnealingSampler()
        self.paint = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 27))

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        latent = self.sampler(noise)
        return torch.sigmoid(self.paint(latent)).view(-1, 3, 3, 3)


def make():
    return ImageSketcher().eval(), [(torch.randn(4, 16),) for _ in range(2)]
