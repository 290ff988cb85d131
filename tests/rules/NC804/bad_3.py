"""Dynamo is switched off by configuration."""
import torch
import torch._dynamo
from torch import nn

AS_WRITTEN = True


def make():
    torch._dynamo.config.disable = True
    model = torch.compile(nn.Linear(4, 4), backend="eager")

    def step(x):
        return model(x).sum()

    return step, [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "NC804", "kind": "no_op", "line": "torch._dynamo.config.disable = True", "severity": "high", "fix": ["disable", "remove"]}]
