"""Outputs of a generator are used one at a time."""
import os

import torch

DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def compiled():
    return torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")


def inputs(count=4):
    return [torch.full((8, 8), i + 1.0, device=DEVICE) for i in range(count)]


def outputs(f, xs):
    for x in xs:
        yield f(x)


def make():
    f = compiled()

    def driver(xs):
        total = torch.zeros((), device=DEVICE)
        with torch.no_grad():
            for out in outputs(f, xs):
                total += out.sum()
        return total

    return driver, [(inputs(),)]


AS_WRITTEN = True
EXPECT = []
