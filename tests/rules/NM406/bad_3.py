"""The output is the argument itself, and so it requires a gradient."""
import torch


def make():
    def f(x):
        return torch.zeros_like(x) + x.detach()

    return f, [(torch.randn(2, 3, requires_grad=True),)]


EXPECT = [
    {"code": "NM406", "kind": "numerics", "severity": "high", "line": "def f(x)", "fix": ["clone()"], "torch": ">=2.13,<2.14"},
    {"code": "NM406", "kind": "numerics", "severity": "low", "line": "def f(x)", "fix": ["detach()"], "torch": ">=2.13,<2.14"},
]
