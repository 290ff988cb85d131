"""Chained calls in training share a step, since a backward is to come."""
import os

import torch

DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def compiled():
    return torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")


def inputs(count=4):
    return [torch.full((8, 8), i + 1.0, device=DEVICE) for i in range(count)]


def make():
    a, b = torch.nn.Linear(8, 8, device=DEVICE), torch.nn.Linear(8, 8, device=DEVICE)
    f, g = (torch.compile(m, mode="reduce-overhead") for m in (a, b))

    def driver(x):
        g(f(x)).sum().backward()
        a.zero_grad(set_to_none=True)
        b.zero_grad(set_to_none=True)

    return driver, [(x,) for x in inputs()]


AS_WRITTEN = True
EXPECT = []
