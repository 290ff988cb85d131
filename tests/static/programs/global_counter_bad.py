"""A counter of the file."""

import torch

CALLS = 0


def every(x):
    global CALLS
    CALLS += 1  # read: RC214 # run: RC214<2.14
    return x + 1


def make():
    return every, [(torch.rand(4),)] * 4
