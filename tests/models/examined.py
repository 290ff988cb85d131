"""A target that `check` measures: a break in every call, blocks, a batch to sweep."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        torch._dynamo.graph_break()
        return x * 2


def make(batch=4):
    return Net(), [(torch.randn(batch, 16),)]
