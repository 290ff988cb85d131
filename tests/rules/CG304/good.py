"""Variables are bound again in each step."""
import os

import torch

DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def compiled():
    return torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")


def inputs(count=4):
    return [torch.full((8, 8), i + 1.0, device=DEVICE) for i in range(count)]


def make():
    f = compiled()

    def driver(xs):
        total = 0.0
        with torch.no_grad():
            for x in xs:
                first = f(x)
                total += float(first.sum())
                second = f(x + 1)
                total += float(second.sum())
        return torch.tensor(total)

    return driver, [(inputs(),)]


AS_WRITTEN = True
EXPECT = []
