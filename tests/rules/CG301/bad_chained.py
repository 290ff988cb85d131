"""One compiled function is given the output of another."""
import os

import torch

DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def compiled():
    return torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")


def inputs(count=4):
    return [torch.full((8, 8), i + 1.0, device=DEVICE) for i in range(count)]


def make():
    f, g = compiled(), torch.compile(lambda x: x.cos(), mode="reduce-overhead")

    def driver(x):
        with torch.no_grad():
            y = f(x)
            return g(y).sum()

    return driver, [(x,) for x in inputs()]


AS_WRITTEN = True
EXPECT = [{"code": "CG301", "kind": "cudagraph_lifetime", "severity": "high", "line": "y = f(x)", "fix": ["clone", "one function"], "holder": "y"}]
