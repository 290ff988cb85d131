import pytest
import torch
from torch import nn

OPTIONS = {"*": {"as_written": True}}


# The compiled sampler is made, but nobody calls it.
def sample(logits):
    return torch.softmax(logits / 0.7, -1).argmax(-1)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.sampler = torch.compile(sample, backend="eager")  # run: NC801

    def forward(self, x):
        return x.argmax(-1)


def bad():
    return Generator(), [(torch.randn(2, 4),)] * 3


# The compiled sampler is called.
class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.sampler = torch.compile(sample, backend="eager")

    def forward(self, x):
        return self.sampler(x * 2)


def good():
    return Sampler(), [(torch.randn(2, 4),)] * 3


# What a test expects to be refused need not be called.
def refused(function):
    with pytest.raises(RuntimeError):
        torch.compile(function, mode="default", options=None)
