"""The tensor itself is changed."""

import torch
from torch import nn


def flagged(x):
    y = x * 2
    y.requires_grad_()  # <- GB116
    return y


def replaced(x):
    y = x.relu()
    y.data = y.data / 2  # <- GB116
    return y + 1


def made(x):
    weight = nn.Parameter(torch.ones(4))  # <- GB116
    return x + weight


def every(x):
    return flagged(x) + replaced(x) + made(x)


def make():
    return every, [(torch.rand(4),)] * 2
