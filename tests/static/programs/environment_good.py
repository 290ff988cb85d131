"""Settings are read once, outside, and numbers are torch's."""

import os

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = float(os.environ.get("TORCHPROOF_SCALE", "1"))

    def forward(self, x):
        return x * self.scale + torch.rand(4)


def make():
    return Net(), [(torch.ones(4),)] * 2
