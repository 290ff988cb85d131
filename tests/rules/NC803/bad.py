"""The result of torch.compile is thrown away; the original is trained."""
import torch
from torch import nn

AS_WRITTEN = True


def make():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    torch.compile(model, backend="eager")

    def step(x):
        return model(x).mean()

    return step, [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "NC803", "kind": "no_op", "line": "torch.compile(model, backend=\"eager\")", "severity": "high", "fix": ["model =", "assign", "result", "compiled"]}]
