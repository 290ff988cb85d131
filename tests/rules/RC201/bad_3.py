"""A dimension marked static by hand: it recompiles for every new size, automatic dynamic shapes or not."""
import torch
import torch._dynamo
from torch import nn


class Projector(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        return self.fc(x).relu()


def make():
    inputs = [torch.randn(n, 6) for n in (3, 4, 5, 6)]
    for x in inputs:
        torch._dynamo.mark_static(x, 0)
    return Projector(), [(x,) for x in inputs]


EXPECT = [{"code": "RC201", "kind": "recompile", "line": "def forward(self, x):", "fix": ["mark_static", "mark_dynamic", "dynamic=True", "pad", "bucket"]}]
