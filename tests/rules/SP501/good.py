"""Enough work in one call: what calling compiled code costs does not show."""
import torch

COMPILE = {"backend": "aot_eager"}


def make():
    def mix(x):
        for _ in range(4):
            x = torch.mm(x, x).sigmoid()
        return x

    return mix, [(torch.randn(192, 192),)] * 3


EXPECT = []
