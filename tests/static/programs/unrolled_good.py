"""The whole sequence at once, and a loop over layers."""

import torch
from torch import nn


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):  # run: RC201
        for index in range(len(self.layers)):
            x = self.layers[index](x)
        for layer in self.layers:
            x = layer(x)
        return x.cumsum(1)


def make():
    return Stack(), [(torch.rand(2, length, 4),) for length in (3, 4, 5)]
