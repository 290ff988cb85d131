"""The factory decorates a function, and returns another one."""
import torch

AS_WRITTEN = True


def make():
    @torch.compile(backend="eager")
    def double(x):
        return x * 2

    return torch.sin, [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "NC801", "kind": "no_op", "line": "@torch.compile", "severity": "high", "fix": ["use"]}]
