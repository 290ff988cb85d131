"""A generator hands out outputs, and its caller collects them."""
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
        with torch.no_grad():
            first, *others = outputs(f, xs)
            return first + others[0]

    return driver, [(inputs(),)]


AS_WRITTEN = True
EXPECT = [{"code": "CG301", "kind": "cudagraph_lifetime", "severity": "high", "line": "first, *others = outputs(f, xs)", "fix": ["clone"], "holder": "first"}]
