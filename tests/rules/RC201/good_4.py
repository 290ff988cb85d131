"""A length that changes, and no code that fixes it: one recompile, then the graph is dynamic."""
import torch


def scan(sequence):
    return sequence.cumsum(0) * 0.9


def make():
    return scan, [(torch.randn(n, 3),) for n in (4, 6)]


EXPECT = []
