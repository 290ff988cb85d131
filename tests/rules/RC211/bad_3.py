"""A list of weights on one call, a tuple on the next."""
import torch


def blend(x, weights):
    return sum(w * x for w in weights)


def make():
    return blend, [(torch.randn(4), [0.5, 0.25]), (torch.randn(4), (0.5, 0.25)), (torch.randn(4), [0.5, 0.25])]


EXPECT = [{"code": "RC211", "kind": "recompile", "line": "sum(w * x for w in weights)", "fix": ["type", "list", "tuple", "always"]}]
