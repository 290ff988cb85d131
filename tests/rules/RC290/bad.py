"""A module that counts its own calls: eight graphs, then eager for good."""
import torch
from torch import nn


class Smoothed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.updates = 0

    def forward(self, x):
        self.updates += 1
        return self.fc(x) / self.updates


def make():
    return Smoothed(), [(torch.randn(2, 4),)] * 12


EXPECT = [{"code": "RC290", "kind": "recompile_limit", "line": "self.updates += 1", "severity": "high", "fix": ["tensor", "buffer", "allow_unspec_int_on_nn_module", "outside"]}]
