"""A loop over twelve layers: different modules, as in any deep model."""
import torch
from torch import nn

COMPILE = {"backend": "eager"}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.wide = nn.Linear(8, 16)
        self.back = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.back(torch.nn.functional.gelu(self.wide(self.norm(x))))


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(12))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def make():
    return Deep(), [(torch.randn(4, 8),)] * 3


EXPECT = []
