"""A buffer that was an output is written to after its memory is gone."""
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
        with torch.no_grad():
            buffer = f(xs[0])
            for x in xs[1:]:
                buffer.copy_(f(x))
            return None

    return driver, [(inputs(),)]


AS_WRITTEN = True
EXPECT = [{"code": "CG301", "kind": "cudagraph_lifetime", "severity": "high", "line": "buffer = f(xs[0])", "fix": ["clone"], "holder": "buffer"}]
