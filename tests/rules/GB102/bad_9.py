"""A batch dimension marked unbacked, and a branch on it."""
import torch
from torch._dynamo.decorators import mark_unbacked


def normalise(x):
    if x.shape[0] > 4:
        return x / x.shape[0]
    return x * 2


def make():
    inputs = [torch.randn(n, 3) for n in (8, 3)]
    for x in inputs:
        mark_unbacked(x, 0)
    return normalise, [(x,) for x in inputs]


EXPECT = [{"code": "GB102", "kind": "graph_break", "line": "if x.shape[0] > 4:", "fix": ["torch._check", "torch.cond", "mark_dynamic", "guard_or", "branch"]}]
