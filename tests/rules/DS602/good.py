"""The unbacked batch is never branched on."""
import torch
from torch._dynamo.decorators import mark_unbacked


def normalise(x):
    return x / x.shape[0]


def make():
    inputs = [torch.randn(n, 3) for n in (8, 3, 1)]
    for x in inputs:
        mark_unbacked(x, 0)
    return normalise, [(x,) for x in inputs]


EXPECT = []
