"""The decimal is turned into a float outside, and the coroutine is awaited by the caller."""
from decimal import Decimal

import torch

RATE = float(Decimal("1.25"))


def priced(x):
    x = x * 2
    return x * RATE


def make():
    return priced, [(torch.randn(4),)] * 3


EXPECT = []
