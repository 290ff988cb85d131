"""The first call already has different sizes."""
import torch

COMPILE = {"dynamic": True}


def cross_attention(x, context):
    weights = torch.softmax(x @ context.transpose(-1, -2), -1)
    return weights @ context


def make():
    return cross_attention, [(torch.randn(6, 8), torch.randn(m, 8)) for m in (9, 7, 10)]


EXPECT = []
