"""Positions without a batch broadcast; expanded inside of one graph they are fine."""

import torch
from torch import nn


class Rotary(nn.Module):
    def forward(self, positions):
        return positions.float().cos()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = Rotary()

    def forward(self, x):  # run: RC201
        batch, length = x.shape
        positions = torch.arange(length).expand(batch, -1)
        return x * self.rotary(positions) + torch.arange(length)


def make():
    return Model(), [(torch.rand(batch, 4),) for batch in (2, 3, 4)]
