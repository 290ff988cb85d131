"""json.dumps is traced into and breaks deep in the standard library; the place is the user's line."""
import json

import torch
from torch import nn


class Tagged(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        tag = json.dumps({"rows": x.shape[0], "kind": "hidden"})
        return x * 2, tag


def make():
    return Tagged(), [(torch.randn(2, 4),)] * 2


EXPECT = [{"code": "GB105", "kind": "graph_break", "line": "json.dumps(", "fix": ["outside", "remove", "move", "precompute"]}]
