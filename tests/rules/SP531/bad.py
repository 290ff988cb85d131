"""The batch size is compiled in, so every other one is compiled again."""
import torch
from torch import nn

COMPILE = {"backend": "eager", "dynamic": False}


def make(batch=4):
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU()), [(torch.randn(batch, 4),)]


EXPECT = [{"code": "SP531", "kind": "recompile", "line": None, "severity": "high", "fix": ["mark_dynamic", "dynamic=True"]}]
