"""The body of the unrolled loop is a module, called with its own output."""
import torch
from torch import nn

COMPILE = {"backend": "eager"}


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, h):
        return torch.tanh(x + self.inner(h))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell()

    def forward(self, x):
        h, t = torch.zeros(8), 0
        while t < 32:
            h = self.cell(x[t], h)
            t += 1
        return h


def make():
    return Recurrent(), [(torch.randn(32, 8),)] * 3


EXPECT = [{"code": "SP511", "kind": "compile_time", "line": "while t < 32", "fix": ["scan", "vectorise", "loop outside"]}]
