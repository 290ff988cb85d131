"""A convolution over a batch that is declared to be of any size: Inductor fails."""

import torch
from torch import nn
from torch._dynamo.decorators import mark_unbacked


class LeafBlock(nn.Module):
    """Two convolutions with a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.pointwise = nn.Conv2d(channels, channels, 1)
        self.normalise = nn.GroupNorm(2, channels)

    def forward(self, leaf: torch.Tensor) -> torch.Tensor:
        changed = self.pointwise(self.depthwise(leaf))
        return leaf + torch.relu(self.normalise(changed))


class LeafDiseaseNet(nn.Module):
    """What ails a plant, from a picture of one of its leaves."""

    def __init__(self, channels: int = 8, diseases: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(LeafBlock(channels), LeafBlock(channels))
        self.diseases = nn.Linear(channels, diseases)

    def forward(self, leaf: torch.Tensor) -> torch.Tensor:
        leaf = (leaf - 0.5) / 0.25
        hidden = self.blocks(torch.relu(self.stem(leaf)))
        pooled = hidden.mean(dim=(2, 3))
        return self.diseases(pooled).softmax(dim=-1)


def make():
    # The greenhouse sends as many pictures as it has: never compile again for that.
    leaves = torch.rand(2, 3, 16, 16)
    mark_unbacked(leaves, 0)
    model = LeafDiseaseNet().eval().requires_grad_(False)
    return model, [(leaves,)]
