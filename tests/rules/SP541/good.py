"""The same many modules in front of real work: their guards do not show."""
import torch
from torch import nn

COMPILE = {"backend": "eager"}


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor if self.training else x


class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(Scale(float(n)) for n in range(400))

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x @ x


def make():
    return Many().eval(), [(torch.randn(384, 384),)] * 3


EXPECT = []
