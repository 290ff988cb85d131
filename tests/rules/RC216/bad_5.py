"""set_default_device in mid-flight changes the function mode stack, which is guarded."""
import torch


def scale(x):
    return x * 2


def make():
    return scale, [(torch.randn(4),)] * 3


def before_call(fn, index):
    torch.set_default_device("cpu" if index == 1 else None)


EXPECT = [{"code": "RC216", "kind": "recompile", "line": "def scale(x):", "fix": ["set_default_device", "default device", "mode", "before"]}]
