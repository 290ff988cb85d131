"""A single sample comes without a batch dimension."""
import torch
from torch import nn


class Classifier(nn.Module):
    def forward(self, x):
        return (x * 2).softmax(-1)


def make():
    return Classifier(), [(torch.randn(4, 8),), (torch.randn(8),), (torch.randn(4, 8),)]


EXPECT = [{"code": "RC207", "kind": "recompile", "line": "def forward(self, x):", "fix": ["unsqueeze", "dimensions", "rank", "batch dimension"]}]
