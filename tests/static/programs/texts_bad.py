"""Texts made of values, and a sort by values."""

import torch


def every(x):
    x = x.relu()
    label = str(x.sum())  # <- GB117
    x = x * 2
    key = repr(  # <- GB117
        x
    )
    parts = list(x.chunk(2))
    x = x + sorted(parts, key=lambda part: part.norm())[0].sum()  # <- GB117
    return x, label, key


def make():
    return every, [(torch.rand(4),)] * 2
