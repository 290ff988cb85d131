"""A string argument picks the reduction: one graph for each value."""
import torch
from torch import nn


class Loss(nn.Module):
    def forward(self, prediction, target, reduction):
        error = (prediction - target).pow(2)
        if reduction == "sum":
            return error.sum()
        return error.mean() if reduction == "mean" else error


def make():
    a, b = torch.randn(4), torch.randn(4)
    return Loss(), [(a, b, name) for name in ("mean", "sum", "none")]


EXPECT = [{"code": "RC210", "kind": "recompile", "line": "if reduction == \"sum\":", "fix": ["separate", "argument", "constant", "fixed"]}]
