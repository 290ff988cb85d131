"""The forward of the compiled module is disabled: torch.compile does nothing."""
import torch
from torch import nn

AS_WRITTEN = True


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    @torch.compiler.disable
    def forward(self, x):
        return self.fc(x).relu()


def make():
    return torch.compile(Model(), backend="eager"), [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "NC805", "kind": "no_op", "line": "@torch.compiler.disable", "severity": "high", "fix": ["disable", "remove"]}]
