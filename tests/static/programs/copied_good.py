"""A tensor is cloned."""

import torch


def every(x):
    x = x.relu()
    before = x.detach().clone()
    return x + before


def make():
    return every, [(torch.rand(4),)] * 2
