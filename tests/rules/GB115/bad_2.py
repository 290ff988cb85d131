"""A cached file is looked for on disk in every call."""
import os

import torch
from torch import nn


class CachedBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        if os.path.exists("/nonexistent/bias.pt"):
            x = x + 1
        return x.relu()


def make():
    return CachedBias(), [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "GB115", "kind": "graph_break", "line": "os.path.exists(", "fix": ["outside", "__init__", "once", "file"]}]
