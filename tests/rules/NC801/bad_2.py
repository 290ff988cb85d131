"""A function is compiled for the factory, which returns the uncompiled one."""
import torch

AS_WRITTEN = True


def double(x):
    return x * 2


fast_double = torch.compile(double, backend="eager")


def make():
    return double, [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "NC801", "kind": "no_op", "line": "fast_double = torch.compile(double", "severity": "high", "fix": ["use"]}]
