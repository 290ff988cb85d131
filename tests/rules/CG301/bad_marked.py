"""In marked steps, an output of one step is read in the next."""
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
        total, last = 0.0, None
        with torch.no_grad():
            for x in xs:
                torch.compiler.cudagraph_mark_step_begin()
                fresh = f(x)
                if last is not None:
                    total = total + (fresh - last).abs().sum()
                last = fresh
        return total

    return driver, [(inputs(),)]


AS_WRITTEN = True
EXPECT = [{"code": "CG301", "kind": "cudagraph_lifetime", "severity": "high", "line": "last = fresh", "fix": ["clone"], "holder": "last"}]
