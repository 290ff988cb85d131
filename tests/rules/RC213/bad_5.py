"""Each block counts its calls; its input requires grad behind the first block only. The counter is what repeats."""
import torch
from torch import nn

AS_WRITTEN = True


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        return x + self.fc(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(torch.compile(Block(), backend="eager") for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def make():
    return Model(), [(torch.randn(2, 4),)] * 4


EXPECT = [
    {"code": "RC213", "kind": "recompile", "line": "self.seen += 1", "fix": ["buffer"], "severity": "high"},
    {"code": "RC208", "kind": "recompile", "line": "def forward(self, x):", "fix": ["requires_grad"], "severity": "medium"},
]
