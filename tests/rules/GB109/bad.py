"""copy.deepcopy of a cached state before it is changed."""
import copy

import torch
from torch import nn


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, state):
        x = self.fc(x)
        before = copy.deepcopy(state)
        return x + before


def make():
    return Recurrent(), [(torch.randn(2, 4), torch.zeros(2, 4))] * 3


EXPECT = [{"code": "GB109", "kind": "graph_break", "line": "copy.deepcopy(state)", "fix": ["clone", "outside"]}]
