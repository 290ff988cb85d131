"""dynamic=True and code that treats sizes as numbers only."""
import torch

COMPILE = {"dynamic": True}


def scan(sequence):
    steps = torch.arange(sequence.shape[0], dtype=sequence.dtype)
    decay = 0.9 ** (sequence.shape[0] - 1 - steps)
    return (sequence * decay[:, None]).sum(0) / sequence.shape[0]


def make():
    return scan, [(torch.randn(n, 3),) for n in (4, 5, 6)]


EXPECT = []
