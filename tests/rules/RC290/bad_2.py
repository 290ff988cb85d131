"""A new sequence length at every call and dynamic=False."""
import torch

COMPILE = {"dynamic": False}


def encode(tokens):
    return tokens.softmax(-1).mean(0)


def make():
    return encode, [(torch.randn(length, 4),) for length in range(2, 13)]


EXPECT = [{"code": "RC290", "kind": "recompile_limit", "line": "def encode(tokens):", "severity": "high", "fix": ["mark_dynamic", "dynamic", "pad", "bucket"]}]
