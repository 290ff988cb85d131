"""A global counter is incremented by the compiled function itself."""
import torch
from torch import nn

CALLS = 0


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        global CALLS
        CALLS += 1
        return self.fc(x)


def make():
    return Counted(), [(torch.randn(2, 4),)] * 5


EXPECT = [{"code": "RC214", "kind": "recompile", "line": "CALLS += 1", "fix": ["global", "tensor", "outside", "argument"], "torch": "<2.14"}]
