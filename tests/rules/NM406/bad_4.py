"""Dropout in eager returns its argument in evaluation; compiled code copies it."""
import torch


def make():
    def f(x):
        return torch.nn.functional.dropout(x, 0.5, training=False)

    return f, [(torch.randn(2, 3),)]


EXPECT = [{"code": "NM406", "kind": "numerics", "severity": "low", "line": "def f(x)", "fix": ["clone()"]}]
