"""An overloaded operator names no argument in words, only the types it was given."""
import torch


def spread(x):
    y = x * 2
    return torch.std(y, 1, unbiased=x.shape[1] > 4)


def make():
    return spread, [(torch.randn(2, length, 8),) for length in (8, 6, 9, 12)]


COMPILE = {"dynamic": True}
EXPECT = [{"code": "GB118", "kind": "graph_break", "line": "torch.std(y", "fix": ["unbiased"]}]
