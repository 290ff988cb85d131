"""Reading .grad_fn to find out whether a tensor is part of a graph: the function is skipped."""
import torch
from torch import nn


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        if y.grad_fn is not None:
            y = y * 2
        return y.relu()


def make():
    return Probe(), [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "GB116", "kind": "skipped_frame", "line": "y.grad_fn is not None", "severity": "high", "fix": ["requires_grad", "grad_fn", "is_grad_enabled", "outside"]}]
