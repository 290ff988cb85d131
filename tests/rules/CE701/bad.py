"""A view that fails is caught in eager; under fake tensors the error comes out of the compiler."""
import torch
from torch import nn


class Patches(nn.Module):
    def forward(self, x):
        x = x * 2
        try:
            return x.view(-1, 7)
        except RuntimeError:
            return x.view(-1, 4)


def make():
    return Patches(), [(torch.randn(3, 8),)]


EXPECT = [{"code": "CE701", "kind": "compile_error", "line": "x.view(-1, 7)", "severity": "high", "fix": ["shape", "try", "check", "if"], "torch": "<2.14"}]
