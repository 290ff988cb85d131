"""A list that each call starts anew."""

import torch
from torch import nn


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.outputs = []

    def forward(self, x):
        self.outputs = []
        kept = []
        for layer in self.layers:
            x = layer(x)
            kept.append(x)
            self.outputs.append(1)
        return torch.stack(kept)


def make():
    return Probe(), [(torch.rand(2, 4),)] * 4
