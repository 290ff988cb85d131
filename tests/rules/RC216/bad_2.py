"""The default dtype is changed between calls."""
import torch


def noise_like(x):
    return x + torch.ones(4)


def make():
    return noise_like, [(torch.randn(4, dtype=torch.float32),)] * 3


def before_call(fn, index):
    torch.set_default_dtype(torch.float64 if index == 1 else torch.float32)


EXPECT = [{"code": "RC216", "kind": "recompile", "line": "def noise_like(x):", "fix": ["default_dtype", "default dtype", "dtype="]}]
