"""An empty batch at the end of an epoch needs a graph of its own."""
import torch

COMPILE = {"dynamic": True}


def pooled(tokens):
    return tokens.tanh().sum(0)


def make():
    return pooled, [(torch.randn(n, 4),) for n in (5, 6, 0)]


EXPECT = [{"code": "RC202", "kind": "recompile", "line": "return tokens.tanh().sum(0)", "fix": ["mark_unbacked", "warm up", "pad", "empty", "size 0", "0/1"]}]
