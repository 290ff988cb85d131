"""f-strings of shapes, print only in an unreachable branch, a name that merely looks like print."""
import torch
from torch import nn


class Blueprint(nn.Module):
    """Does not print(x) anywhere that runs."""

    verbose = False

    def imprint(self, x):
        return x * 2  # print(x) would break here

    def forward(self, x):
        label = f"{tuple(x.shape)}-{x.dtype}"
        if self.verbose:
            print("hidden", label)
        return self.imprint(x) + len(label)


def make():
    return Blueprint(), [(torch.randn(2, 3),)] * 3


EXPECT = []
