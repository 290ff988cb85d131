"""The best output so far is kept in a variable of an outer function."""
import os

import torch

DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def compiled():
    return torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")


def inputs(count=4):
    return [torch.full((8, 8), i + 1.0, device=DEVICE) for i in range(count)]


def tracker():
    best = None

    def update(scores):
        nonlocal best
        if best is None or scores.mean() > best.mean():
            best = scores
        return best

    return update


def make():
    f, update = compiled(), tracker()

    def driver(x):
        with torch.no_grad():
            scores = f(x)
            return update(scores).sum()

    return driver, [(x,) for x in inputs()]


AS_WRITTEN = True
EXPECT = [{"code": "CG301", "kind": "cudagraph_lifetime", "severity": "high", "line": "scores = f(x)", "fix": ["clone"], "holder": "best"}]
