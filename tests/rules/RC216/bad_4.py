"""The caller enters autocast only for some of the steps."""
import torch
from torch import nn

AS_WRITTEN = True


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x)


def make():
    compiled = torch.compile(Model(), backend="eager")

    def step(x, mixed):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            return compiled(x)

    return step, [(torch.randn(2, 4), mixed) for mixed in (False, True, False, True)]


EXPECT = [{"code": "RC216", "kind": "recompile", "line": "def forward(self, x):", "fix": ["autocast"]}]
