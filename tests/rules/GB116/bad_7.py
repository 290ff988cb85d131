"""A new nn.Parameter is created inside the forward."""
import torch
from torch import nn


class LazyScale(nn.Module):
    def forward(self, x):
        x = x.relu()
        scale = nn.Parameter(torch.ones(x.shape[-1]))
        return x * scale


def make():
    return LazyScale(), [(torch.randn(2, 4),)] * 2


EXPECT = [{"code": "GB116", "kind": "graph_break", "line": "nn.Parameter(torch.ones(", "fix": ["__init__", "outside", "requires_grad"]}]
