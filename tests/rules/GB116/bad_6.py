"""retain_grad() on a hidden activation: what comes after it in the function is not compiled."""
import torch
from torch import nn


class Inspect(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 1)

    def forward(self, x):
        h = self.a(x).relu()
        h.retain_grad()
        return self.b(h), h


def make():
    return Inspect(), [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "GB116", "kind": "graph_break", "line": "        h.retain_grad()", "fix": ["outside", "retain_grad", "hook", "return"]}]
