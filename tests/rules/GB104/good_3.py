"""A forward hook that only computes with tensors is traced; so is a logger that is looked at but never called."""
import logging

import torch
from torch import nn

logger = logging.getLogger("trainer")


def damp(module, inputs, output):
    return output * 0.5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(8, 2)
        self.a.register_forward_hook(damp)

    def forward(self, x):
        h = self.a(x).relu()
        if logger is None:
            print("no logger")
        return self.b(h)


def make():
    return Net(), [(torch.randn(3, 4),)] * 3


EXPECT = []
