"""Ordinary try/except on Python values, raised and caught inside, is followed."""
import torch
from torch import nn

try:
    from fused_kernels_that_are_not_installed import rms_norm
except ImportError:
    rms_norm = None


class Unsupported(Exception):
    pass


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.options = {}

    def eps(self):
        try:
            return self.options["eps"]
        except KeyError:
            return 1e-6

    def fused(self, x):
        if rms_norm is None:
            raise Unsupported("no kernel")
        return rms_norm(x, self.weight)

    def forward(self, x):
        if x.shape[-1] != 4:
            raise ValueError(f"expected width 4, got {x.shape[-1]}")
        try:
            return self.fused(x)
        except Unsupported:
            return x * (x.pow(2).mean(-1, keepdim=True) + self.eps()).rsqrt() * self.weight


def make():
    return Norm(), [(torch.randn(2, 4),)] * 3


EXPECT = []
