"""Timing a block with time.perf_counter() inside the forward: two breaks."""
import time

import torch
from torch import nn


class Timed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.durations = []

    def forward(self, x):
        x = x * 2
        started = time.perf_counter()
        x = self.body(x)
        stopped = time.perf_counter()
        return x + 1, (started, stopped)


def make():
    return Timed(), [(torch.randn(2, 4),)]


EXPECT = [
    {"code": "GB115", "kind": "graph_break", "line": "started = time.perf_counter()", "fix": ["outside", "profiler", "time"]},
    {"code": "GB115", "kind": "graph_break", "line": "stopped = time.perf_counter()", "fix": ["outside", "profiler", "time"]},
]
