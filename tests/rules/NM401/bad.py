"""The kernel Inductor generates for acosh overflows on the CPU."""
import torch

SLOW = True


def make():
    def f(x):
        y = x * 1.5
        return torch.acosh(y) + 0.5

    return f, [(torch.tensor([2.0, 1e20, 1e30]),)]


EXPECT = [{"code": "NM401", "kind": "numerics", "severity": "high", "torch": "<2.14", "line": "torch.acosh(y)", "fix": ["isolate", "float64", "report"]}]
