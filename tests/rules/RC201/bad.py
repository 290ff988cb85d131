"""Every sequence length compiles its own graph: dynamic=False and a length that changes at every call."""
import torch
from torch import nn

COMPILE = {"dynamic": False}


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.fc = nn.Linear(8, 8)

    def forward(self, ids):
        return self.fc(self.embed(ids)).mean(1)


def make():
    return Encoder(), [(torch.zeros(2, length, dtype=torch.long),) for length in (5, 6, 7, 8)]


EXPECT = [{"code": "RC201", "kind": "recompile", "line": "def forward(self, ids):", "fix": ["mark_dynamic", "dynamic=True", "pad", "bucket"]}]
