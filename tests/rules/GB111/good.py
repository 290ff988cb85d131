"""Context managers Dynamo knows, and a user's own without a break inside."""
import contextlib

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextlib.contextmanager
def section(name):
    yield name


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        with section("first"):
            x = self.a(x).relu()
        with torch.no_grad(), contextlib.nullcontext():
            bias = x.mean()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.b(x)
        q = x.float().view(1, 1, 2, 4)
        with sdpa_kernel(SDPBackend.MATH):
            y = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        return y + bias


def make():
    return Net(), [(torch.randn(2, 4),)] * 3


EXPECT = []
