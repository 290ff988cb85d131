"""A closure made anew for every call, each with another bound string."""
import torch


def scorer(kind):
    def score(x):
        return x.pow(2) if kind.startswith("l2") else x.abs()

    return score


def apply(x, fn):
    return fn(x).sum()


def make():
    return apply, [(torch.randn(4), scorer(f"l2-{index}")) for index in range(4)]


EXPECT = [{"code": "RC210", "kind": "recompile", "line": "kind.startswith(\"l2\")", "fix": ["closure", "once", "outside", "argument", "reuse", "function"]}]
