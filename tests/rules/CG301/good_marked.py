"""Two calls in one marked step may be read together."""
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
        total = torch.zeros((), device=DEVICE)
        with torch.no_grad():
            for x in xs:
                torch.compiler.cudagraph_mark_step_begin()
                pair = [f(x), f(x + 1)]
                total += torch.stack(pair).sum()
        return total

    return driver, [(inputs(),)]


AS_WRITTEN = True
EXPECT = []
