"""A Python if on the value of a loss: skip the update when it is too large."""
import torch
from torch import nn


class SpikeGuard(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, target):
        loss = (self.fc(x) - target).pow(2).mean()
        if loss > 100.0:
            loss = loss * 0.0
        return loss + self.fc.weight.pow(2).sum() * 1e-4


def make():
    return SpikeGuard(), [(torch.randn(2, 4), torch.randn(2, 4)) for _ in range(4)]


EXPECT = [{"code": "GB102", "kind": "graph_break", "line": "if loss > 100.0:", "severity": "high", "fix": ["torch.where", "torch.cond", "mask"]}]
