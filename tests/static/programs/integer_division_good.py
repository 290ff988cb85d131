"""torch.div of Python integers is a constant, and nonzero(as_tuple=False) a tensor."""
import torch
from torch import nn


class Chunks(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.width = width
        self.out = nn.Linear(2, 2)

    def forward(self, x):
        length = x.size(1)
        count = torch.div(length, self.width, rounding_mode="trunc")
        return self.out(x.reshape(2, torch.div(length, self.width, rounding_mode="trunc"), -1, 2)) * count


def make():
    return Chunks(), [(torch.randn(2, 8, 2),)] * 3
