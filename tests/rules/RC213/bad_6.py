"""A flag flips when the sizes have settled: the graph of the first size is the last one used, and is told first."""
import torch
from torch import nn


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.squared = False

    def forward(self, x):
        return (x * x if self.squared else x).sum(1)


def make():
    return Pool(), [(torch.randn(size, 4),) for size in (8, 5, 8, 7, 6)]


def before_call(model, index):
    model.squared = index >= 3


EXPECT = [
    {"code": "RC213", "kind": "recompile", "line": "self.squared", "fix": ["separate", "fixed", "argument"]},
    {"code": "RC201", "kind": "recompile", "line": "def forward(self, x):", "fix": ["dynamic"], "severity": "low"},
]
