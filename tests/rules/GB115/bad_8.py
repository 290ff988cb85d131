"""An optional dependency is probed with try/except ImportError in the forward: the whole function is skipped."""
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        try:
            from fused_kernels_that_are_not_installed import rms_norm
        except ImportError:
            return x * x.pow(2).mean(-1, keepdim=True).rsqrt() * self.weight
        return rms_norm(x, self.weight)


def make():
    return Norm(), [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "GB115", "kind": "skipped_frame", "line": "from fused_kernels_that_are_not_installed", "severity": "high", "fix": ["import", "module level", "outside", "top of"]}]
