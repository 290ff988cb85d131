"""Positions are expanded over the batch and cross a graph break."""

import torch
from torch import nn


class Rotary(nn.Module):
    def forward(self, positions):  # run: RC201, RC204
        if positions.max() > 100:  # <- GB102
            positions = positions - 1
        return positions.float().cos()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = Rotary()

    def forward(self, x):  # run: RC201
        batch, length = x.shape  # run: RC202
        positions = torch.arange(length).expand(batch, -1)  # read: RC204
        twice = torch.arange(length).expand(2 * batch, -1)
        return x * self.rotary(positions) + self.rotary(twice).mean()  # run: RC201, RC202


def make():
    return Model(), [(torch.rand(batch, 4),) for batch in (2, 3, 1)]
