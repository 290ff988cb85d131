"""The backend that only makes CUDA graphs, and an output of the call before."""

import os

import torch

DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def make():
    f = torch.compile(lambda x: x.sin() + 1, backend="cudagraphs")

    def driver(xs):
        with torch.no_grad():
            before = f(xs[0])
            after = f(xs[1])
            return (after - before).sum()

    return driver, [([torch.full((8,), i + 1.0, device=DEVICE) for i in range(2)],)]


AS_WRITTEN = True
EXPECT = [{"code": "CG301", "kind": "cudagraph_lifetime", "severity": "high", "line": "before = f(xs[0])", "fix": ["clone"], "holder": "before"}]
