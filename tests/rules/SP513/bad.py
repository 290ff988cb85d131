"""Thirty-two equal blocks, compiled one after the other into one graph."""
import torch
from torch import nn

COMPILE = {"backend": "eager"}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(8, 16)
        self.back = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.back(self.wide(x).relu())


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(32)))

    def forward(self, x):
        return self.blocks(x)


def make():
    return Deep(), [(torch.randn(4, 8),)] * 3


EXPECT = [{"code": "SP513", "kind": "compile_time", "line": "return self.blocks(x)", "severity": "low", "fix": ["block.compile()"]}]
