"""torch.compile takes the same Python as it is."""

import torch
from torch import nn


@torch.compile(backend="eager")
def scaled(x, factor=2.0, *more):
    order = sorted([2, 1], key=lambda n: -n)
    return x * factor * order[0]


class Net(nn.Module):
    def forward(self, x):
        return self.ignored(x)

    def ignored(self, x):
        import math

        return x * math.pi
