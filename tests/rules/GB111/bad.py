"""A lock taken in the forward of a shared module: the function is skipped."""
import threading

import torch
from torch import nn


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.lock = threading.Lock()

    def forward(self, x):
        x = x.tanh()
        with self.lock:
            x = self.fc(x)
        return x


def make():
    return Shared(), [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "GB111", "kind": "skipped_frame", "line": "with self.lock:", "severity": "high", "fix": ["outside", "lock"]}]
