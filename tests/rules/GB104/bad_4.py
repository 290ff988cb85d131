"""A home-made progress bar that writes to the terminal inside the layer loop: the function is skipped."""
import sys

import torch
from torch import nn


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
            sys.stdout.write("#")
        return x


def make():
    return Stack(), [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "GB104", "kind": "skipped_frame", "line": "sys.stdout.write(", "severity": "high", "fix": ["is_compiling", "remove", "outside"]}]
