"""A disabled helper is called inside a user's context manager. The break was chosen, but it cannot be resumed inside the with
block, so the whole function runs eagerly, which nobody chose."""
import contextlib

import torch
from torch import nn


@contextlib.contextmanager
def section(name):
    yield name


@torch.compiler.disable
def log_scale(x):
    return float(x.detach().abs().max())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        with section("first"):
            x = self.a(x)
            scale = log_scale(x)
            x = x.relu()
        return self.b(x), scale


def make():
    return Net(), [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "GB106", "kind": "skipped_frame", "line": "scale = log_scale(x)", "severity": "high", "fix": ["outside", "out of", "with", "context manager"]}]
