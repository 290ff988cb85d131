"""Nobody changes the variable here; who does will find that nothing happens."""
import os

import torch

COMPILE = {"backend": "eager"}


def scale(x):
    if os.getenv("TORCHPROOF_NM411_MODE", "fast") == "slow":
        return x * 2
    return x


class Net(torch.nn.Module):
    def forward(self, x):
        return scale(x) + 1


def make():
    return Net(), [(torch.ones(3),)]


EXPECT = [{"code": "NM411", "kind": "stale_state", "severity": "medium", "line": "os.getenv(", "fix": ["argument"]}]
