import torch
from torch import nn


# A flag flips when the sizes have settled.
class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.squared = False

    def forward(self, x):  # <- RC201
        return (x * x if self.squared else x).sum(1)  # <- RC213


def before_call(model, index):
    model.squared = index >= 3


def bad_6():
    return Pool(), [(torch.randn(size, 4),) for size in (8, 5, 8, 7, 6)]
