"""Inductor drops a product with ones, and returns the argument itself."""
import torch


def make():
    def f(x):
        return x * torch.ones(3)

    return f, [(torch.randn(2, 3),)]


EXPECT = [{"code": "NM406", "kind": "numerics", "severity": "high", "line": "def f(x)", "fix": ["clone()"], "torch": ">=2.13,<2.14"}]
