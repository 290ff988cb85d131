"""The limit holds for every input, as the caller cuts what is longer."""
import torch


def pool(x):
    if x.shape[0] <= 128:
        return x.mean(0)
    return x[:128].mean(0)


def make():
    return pool, [(torch.randn(min(n, 128), 4),) for n in (100, 90, 200, 150, 80)]


COMPILE = {"dynamic": True}
EXPECT = []
