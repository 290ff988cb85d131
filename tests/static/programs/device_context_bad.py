"""Tensors get their device from a context manager."""

import torch


def every(x):
    x = x * 2
    with torch.device("cpu"):  # <- GB111
        y = torch.ones(4)
    return x + y


def make():
    return every, [(torch.rand(4),)] * 2
