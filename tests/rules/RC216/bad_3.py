"""Deterministic algorithms are switched on for some calls."""
import torch


def accumulate(x, index):
    return torch.zeros(4).index_add(0, index, x)


def make():
    return accumulate, [(torch.randn(3), torch.tensor([0, 1, 1]))] * 3


def before_call(fn, index):
    torch.use_deterministic_algorithms(index == 1)


EXPECT = [{"code": "RC216", "kind": "recompile", "line": "def accumulate(x, index):", "fix": ["deterministic", "once", "before"]}]
