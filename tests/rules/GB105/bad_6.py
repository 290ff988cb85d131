"""A context variable is read in the forward (request-scoped settings)."""
import contextvars

import torch
from torch import nn

SCALE = contextvars.ContextVar("scale", default=2.0)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x).tanh()
        factor = SCALE.get()
        return x * factor


def make():
    return Scaled(), [(torch.randn(2, 4),)] * 2


EXPECT = [{"code": "GB105", "kind": "graph_break", "line": "SCALE.get()", "fix": ["argument", "outside", "pass", "attribute"], "torch": "<2.14"}]
