"""Scores are kept for telemetry that nobody reads."""
import os

import torch

DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def compiled():
    return torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")


def inputs(count=4):
    return [torch.full((8, 8), i + 1.0, device=DEVICE) for i in range(count)]


class Telemetry:
    def __init__(self):
        self.history = []


def make():
    f, telemetry = compiled(), Telemetry()

    def driver(x):
        with torch.no_grad():
            scores = f(x)
            telemetry.history.append(scores)
            return scores.sum()

    return driver, [(x,) for x in inputs()]


AS_WRITTEN = True
EXPECT = [{"code": "CG304", "kind": "cudagraph_lifetime", "severity": "low", "line": "telemetry.history.append(scores)", "fix": ["clone"], "holder": "telemetry.history[0]"}]
