"""dynamic=True and a branch on equality: each of the sizes gets a graph of its own."""
import torch

COMPILE = {"dynamic": True}


def windowed(x):
    if x.shape[0] == 4:
        return x.view(2, 2, 3).sum(1)
    return x * 2


def make():
    return windowed, [(torch.randn(4, 3),)] * 2


EXPECT = [{"code": "DS603", "kind": "specialization", "line": "if x.shape[0] == 4:", "fix": ["==", "branch", "static", "mark_dynamic"]}]
