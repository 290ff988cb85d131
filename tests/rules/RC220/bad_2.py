"""The same limit, and a size of 1: torch names both ends of the range, so both are explained."""
import torch


def pool(x):
    if x.shape[0] <= 128:
        return x.mean(0)
    return x[:128].mean(0)


def make():
    return pool, [(torch.randn(n, 4),) for n in (100, 90, 1, 80)]


COMPILE = {"dynamic": True}
EXPECT = [{"code": "RC220", "kind": "recompile", "line": None, "fix": ["mark_unbacked(x, 0)"]}]
