"""A network that is evaluated between training steps: each mode has its own graph."""

import torch
from torch import nn


class DropBranch(nn.Module):
    """Leaves a whole branch out, at random, while the network is trained."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.chance = chance

    def forward(self, branch: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return branch
        kept = (torch.rand(branch.shape[0], 1) > self.chance).to(branch.dtype)
        return branch * kept / (1 - self.chance)


class SoilBlock(nn.Module):
    def __init__(self, width: int, chance: float) -> None:
        super().__init__()
        self.mix = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.Mish()
        )
        self.drop = DropBranch(chance)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return samples + self.drop(self.mix(samples))


class SoilMoistureNet(nn.Module):
    """Moisture of the ground from what satellites see."""

    def __init__(self, bands: int = 9, width: int = 28, depth: int = 3) -> None:
        super().__init__()
        self.bands = nn.Linear(bands, width)
        self.blocks = nn.Sequential(*(SoilBlock(width, 0.2) for _ in range(depth)))
        self.moisture = nn.Linear(width, 1)

    def forward(self, bands: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.moisture(self.blocks(self.bands(bands)))).squeeze(-1)


def make():
    return SoilMoistureNet(), [(torch.randn(10, 9),) for _ in range(4)]


def before_call(fn, index):
    """Every other batch is one of the validation set."""
    fn.train(index % 2 == 0)
