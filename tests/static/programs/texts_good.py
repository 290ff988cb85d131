"""Texts made of shapes and names, and a sort of plain numbers."""

import torch


def every(x, name: str):
    x = x.relu()
    label = str(x.shape) + repr(x.dtype) + str(name)
    order = sorted([3, 1, 2])
    return x.sort().values * order[0], f"{label} {name}"


def make():
    return every, [(torch.rand(4), "a")] * 2
