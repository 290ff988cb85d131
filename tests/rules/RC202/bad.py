"""Batch size 1 is special: the dynamic graph does not cover it."""
import torch
import torch._dynamo
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(x).log_softmax(-1)


def make():
    inputs = [torch.randn(n, 8) for n in (6, 1, 7, 1)]
    for x in inputs:
        torch._dynamo.maybe_mark_dynamic(x, 0)
    return Head(), [(x,) for x in inputs]


EXPECT = [{"code": "RC202", "kind": "recompile", "line": "def forward(self, x):", "fix": ["mark_unbacked", "warm up", "pad", "size 1"]}]
