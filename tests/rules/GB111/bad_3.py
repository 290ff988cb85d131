"""A dispatch mode (FLOP counter and the like) entered in the forward."""
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class CountOps(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.mode = CountOps()

    def forward(self, x):
        x = x.relu()
        with self.mode:
            return self.fc(x)


def make():
    return Counted(), [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "GB111", "kind": "skipped_frame", "line": "with self.mode:", "severity": "high", "fix": ["outside", "context manager", "remove"]}]
