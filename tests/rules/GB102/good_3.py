"""A data-dependent choice as torch.cond."""
import torch
from torch import nn


class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        p = self.first(x).softmax(-1)
        return torch.cond(p.max() > 2.0, lambda t: t + 0, lambda t: self.second(t), (p,))


def make():
    return EarlyExit(), [(torch.randn(2, 4),)] * 2


EXPECT = []
