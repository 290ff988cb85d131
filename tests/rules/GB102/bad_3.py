"""assert of a negated tensor is a branch (a plain `assert tensor` would be traced)."""
import torch
from torch import nn


class CheckedNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        x = self.norm(x)
        assert not x.isinf().any(), "overflow after the norm"
        return x * 2


def make():
    return CheckedNorm(), [(torch.randn(2, 6),)] * 2


EXPECT = [{"code": "GB102", "kind": "graph_break", "line": "assert not x.isinf().any()", "fix": ["_assert", "isfinite", "assert", "outside"]}]
