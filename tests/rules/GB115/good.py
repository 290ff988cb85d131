"""The clock is read by the caller; a reading of the environment and an import are traced (and frozen)."""
import os
import random

import torch
from torch import nn


class Timed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x):
        import math

        x = x * 2
        x = self.body(x)
        noise = torch.randn_like(x) * random.uniform(0.0, 0.1)
        path = os.path.join("runs", "a")
        return x + noise + math.pi + len(path)


def make():
    return Timed(), [(torch.randn(2, 4),)] * 3


EXPECT = []
