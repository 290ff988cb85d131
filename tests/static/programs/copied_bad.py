"""A tensor is copied with copy.deepcopy."""

import copy

import torch


def every(x):
    x = x.relu()
    before = copy.deepcopy(x)  # <- GB109
    return x + before


def make():
    return every, [(torch.rand(4),)] * 2
