"""Outputs of earlier calls are kept in a list and stacked."""
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
        outs = []
        with torch.no_grad():
            for x in xs:
                outs.append(f(x))
            return torch.stack(outs).sum()

    return driver, [(inputs(),)]


AS_WRITTEN = True
EXPECT = [{"code": "CG301", "kind": "cudagraph_lifetime", "severity": "high", "line": "outs.append(f(x))", "fix": ["clone"], "holder": "outs[0]"}]
