"""One device throughout."""
import torch


def attend(q, k):
    return torch.softmax(q @ k.t(), -1)


def make():
    return attend, [(torch.randn(4, 8), torch.randn(4, 8)) for _ in range(3)]


EXPECT = []
