"""Seeding inside the compiled function, for a reproducible dropout."""
import torch
import torch.nn.functional as F


def reproducible(x):
    x = x * 2
    torch.manual_seed(7)
    return F.dropout(x, 0.5)


def make():
    return reproducible, [(torch.randn(4),)] * 3


EXPECT = [{"code": "GB115", "kind": "graph_break", "line": "torch.manual_seed(7)", "fix": ["outside", "seed", "before"]}]
