"""A new lambda of the same code, a new plain object and a new module of the same structure do not recompile."""
import torch
from torch import nn


class Options:
    def __init__(self, width):
        self.width = width


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x).relu()


def apply(x, fn, options, block):
    return block(fn(x)) * options.width


def make():
    return apply, [(torch.randn(4), lambda t: t * 2, Options(2.0), Block()) for _ in range(4)]


EXPECT = []
