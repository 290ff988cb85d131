"""A Python int argument: it is made dynamic at its first change, so this settles after one recompile."""
import torch


def warmup_scale(x, step):
    return x * (step / 100)


def make():
    return warmup_scale, [(torch.randn(4), step) for step in (10, 11, 12, 13, 14)]


EXPECT = [{"code": "RC210", "kind": "recompile", "line": "x * (step / 100)", "severity": "low", "fix": ["tensor", "dynamic"]}]
