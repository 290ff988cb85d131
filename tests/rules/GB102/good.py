"""The same guard as a torch.where."""
import torch
from torch import nn


class SpikeGuard(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, target):
        loss = (self.fc(x) - target).pow(2).mean()
        loss = torch.where(loss > 100.0, loss * 0.0, loss)
        return loss + self.fc.weight.pow(2).sum() * 1e-4


def make():
    return SpikeGuard(), [(torch.randn(2, 4), torch.randn(2, 4)) for _ in range(4)]


EXPECT = []
