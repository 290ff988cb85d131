import torch
from torch import nn


# A view that fails is caught in eager.
class Patches(nn.Module):
    def forward(self, x):
        x = x * 2
        try:
            return x.view(-1, 7)  # <- CE701<2.14
        except RuntimeError:
            return x.view(-1, 4)


def bad():
    return Patches(), [(torch.randn(3, 8),)]


# Indexing past the end, caught as IndexError in eager.
def last_or_first(x, position):
    x = x + 1
    try:
        row = x[position]  # <- CE701
    except IndexError:
        row = x[0]
    return row * 2


def bad_3():
    return last_or_first, [(torch.randn(4, 3), 7)]


# The shape is asked for instead of tried out.
class Patches2(nn.Module):
    def forward(self, x):
        x = x * 2
        if x.numel() % 7 == 0:
            return x.view(-1, 7)
        return x.view(-1, 4)


def good():
    return Patches2(), [(torch.randn(3, 8),)] * 2
