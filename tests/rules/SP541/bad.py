"""400 small modules: checking what they were compiled with takes longer than they do."""
import torch
from torch import nn

COMPILE = {"backend": "eager"}


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x * self.factor if self.training else x


class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(Scale(float(n)) for n in range(400))

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x + self.parts[0].shift


def make():
    return Many().eval(), [(torch.randn(4),)] * 3


EXPECT = [{"code": "SP541", "kind": "slowdown", "line": "def forward(self, x)", "fix": ["guard"]}]
