"""Compiled code takes a branch that computes something else."""
import torch
from torch.compiler import is_compiling

COMPILE = {"backend": "eager"}


def make():
    def f(x):
        if is_compiling():
            return x * 2
        return x * 3

    return f, [(torch.ones(3),)]


EXPECT = [{"code": "NM405", "kind": "numerics", "severity": "high", "line": "if is_compiling()", "fix": ["both branches"]}]
