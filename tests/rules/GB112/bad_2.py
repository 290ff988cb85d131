"""A failed assert on a shape, caught: Dynamo refuses to compile a part of it."""
import torch


def square_or_pad(x):
    x = x * 2
    try:
        assert x.shape[0] == x.shape[1]
    except AssertionError:
        x = torch.nn.functional.pad(x, (0, x.shape[0] - x.shape[1]))
    return x.tril()


def make():
    return square_or_pad, [(torch.randn(4, 3),)] * 3


EXPECT = [{"code": "GB112", "kind": "skipped_frame", "line": "assert x.shape[0] == x.shape[1]", "severity": "high", "fix": ["if", "raise", "try", "except"]}]
