"""`and` between two tensor conditions in a helper that decides on early exit."""
import torch
from torch import nn


class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def confident(self, p):
        return p.max() > 2.0 and p.min() >= 0.0

    def forward(self, x):
        p = self.first(x).softmax(-1)
        if self.confident(p):
            return p
        return self.second(p)


def make():
    return EarlyExit(), [(torch.randn(2, 4),)] * 2


EXPECT = [
    {"code": "GB102", "kind": "graph_break", "line": "p.max() > 2.0 and p.min() >= 0.0", "fix": ["logical_and", "torch.where", "torch.cond", "&"]},
    {"code": "GB102", "kind": "graph_break", "line": "if self.confident(p):", "fix": ["torch.where", "torch.cond", "mask"]},
]
