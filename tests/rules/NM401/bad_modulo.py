"""A remainder by infinity is NaN in generated code, inside a module."""
import torch

SLOW = True


class Wrap(torch.nn.Module):
    def forward(self, x):
        h = torch.nn.functional.gelu(x)
        return h % float("inf")


def make():
    return Wrap(), [(torch.tensor([-1.5, 2.5]),)]


EXPECT = [{"code": "NM401", "kind": "numerics", "severity": "high", "line": "h % float", "fix": ["isolate"]}]
