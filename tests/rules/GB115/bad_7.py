"""The random() of the Python standard library is not traced (random.uniform is)."""
import random

import torch
from torch import nn


class LayerDrop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        x = self.layers[0](x)
        keep = random.random()
        y = self.layers[1](x)
        return y if keep < 2.0 else x


def make():
    return LayerDrop(), [(torch.randn(2, 4),)]


EXPECT = [{"code": "GB115", "kind": "graph_break", "line": "random.random()", "fix": ["torch.rand", "random.uniform", "outside", "argument"], "torch": "<2.14"}]
