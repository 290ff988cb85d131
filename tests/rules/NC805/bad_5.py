"""module.compile() on a module whose class is torch's own (nn.Sequential) compiles nothing, without a word."""
import torch
from torch import nn

AS_WRITTEN = True


def make():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    model.compile(backend="eager")

    def step(x):
        return model(x).mean()

    return step, [(torch.randn(2, 4),)] * 3


EXPECT = [{"torch": "<2.14", "code": "NC805", "kind": "no_op", "line": "model.compile(backend=", "severity": "high", "fix": ["torch.compile(model", "torch.compile("]}]
