"""Another function object is passed at every call."""
import torch

ACTIVATIONS = [torch.sin, torch.cos, torch.tanh]


def activate(x, fn):
    return fn(x) * 2


def make():
    return activate, [(torch.randn(4), fn) for fn in ACTIVATIONS]


EXPECT = [{"code": "RC215", "kind": "recompile", "line": "fn(x) * 2", "fix": ["function", "once", "outside", "reuse", "same"]}]
