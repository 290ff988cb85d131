"""A list of the file that grows."""

import torch

SEEN = []


def every(x):
    SEEN.append(1)  # <- RC212
    return x + 1


def make():
    return every, [(torch.rand(4),)] * 4
