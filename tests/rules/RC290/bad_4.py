"""A different prompt name, as a string, at every call."""
import torch


def tagged(x, name):
    return x * (2 if name.endswith("0") else 1)


def make():
    return tagged, [(torch.randn(4), f"sample-{index}") for index in range(12)]


EXPECT = [{"code": "RC290", "kind": "recompile_limit", "line": "name.endswith(\"0\")", "severity": "high", "fix": ["argument", "outside", "remove", "tensor"]}]
