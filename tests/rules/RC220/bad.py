"""A limit on the length: the guard names both ends, and a longer input is beyond the upper one."""
import torch


def pool(x):
    if x.shape[0] <= 128:
        return x.mean(0)
    return x[:128].mean(0)


def make():
    return pool, [(torch.randn(n, 4),) for n in (100, 90, 200, 150, 80)]


COMPILE = {"dynamic": True}
EXPECT = [{"code": "RC220", "kind": "recompile", "line": None, "fix": ["x.shape[0] <= 128"]}]
