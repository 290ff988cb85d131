"""The shape is asked for instead of tried out."""
import torch
from torch import nn


class Patches(nn.Module):
    def forward(self, x):
        x = x * 2
        if x.numel() % 7 == 0:
            return x.view(-1, 7)
        return x.view(-1, 4)


def make():
    return Patches(), [(torch.randn(3, 8),)] * 2


EXPECT = []
