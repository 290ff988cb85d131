"""The signature of a function is known while tracing."""
import inspect

import torch
from torch import nn


class Chunked(nn.Module):
    def feed(self, x):
        return x * 2

    def forward(self, x):
        count = len(inspect.signature(self.feed).parameters)
        return self.feed(x) + count


def make():
    return Chunked(), [(torch.randn(4, 2),)]
