"""A string mode on the module."""
import torch
from torch import nn


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.mode = "mean"

    def forward(self, x):
        if self.mode == "mean":
            return x.mean(1)
        return x.amax(1) if self.mode == "max" else x[:, 0]


def make():
    return Pool(), [(torch.randn(2, 3, 4),)] * 3


def before_call(model, index):
    model.mode = ("mean", "max", "first")[index]


EXPECT = [{"code": "RC213", "kind": "recompile", "line": "if self.mode == \"mean\":", "fix": ["attribute", "argument", "separate", "fixed"]}]
