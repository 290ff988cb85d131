"""The float that varies is a tensor."""

import torch

EXPECT = []


def step(x, count):
    x = x - 0.1 / (1 - 0.9**count) * x / (x + 1)
    return x + x / (1 - 0.999**count) ** 0.5


def make():
    counts = (1.0, 2.0, 3.0, 4.0)
    return step, [(torch.ones(3), torch.tensor(count)) for count in counts]
