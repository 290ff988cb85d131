"""Everything is cast before the call."""
import torch


def standardise(x):
    return (x - x.mean()) / (x.std() + 1e-5)


def make():
    inputs = [torch.randn(8), torch.randn(8, dtype=torch.float64), torch.randn(8)]
    return standardise, [(x.float(),) for x in inputs]


EXPECT = []
