"""An enum argument."""
import enum

import torch
from torch import nn


class Phase(enum.Enum):
    PREFILL = 0
    DECODE = 1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, phase):
        x = self.fc(x)
        return x[-1:] if phase is Phase.DECODE else x


def make():
    return Block(), [(torch.randn(3, 4), phase) for phase in (Phase.PREFILL, Phase.DECODE, Phase.PREFILL)]


EXPECT = [{"code": "RC215", "kind": "recompile", "line": "phase is Phase.DECODE", "fix": ["separate", "argument", "constant", "fixed"]}]
