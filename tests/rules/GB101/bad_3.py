"""Ragged split: the sizes come out of a tensor with .tolist()."""
import torch
from torch import nn


class RaggedPool(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(6, 6)

    def forward(self, packed, sizes):
        packed = self.proj(packed)
        counts = sizes.tolist()
        parts = torch.split(packed, counts)
        return torch.stack([part.mean(0) for part in parts])


def make():
    return RaggedPool(), [(torch.randn(9, 6), torch.tensor([2, 3, 4]))] * 2


EXPECT = [{"code": "GB101", "kind": "graph_break", "line": "sizes.tolist()", "fix": ["tensor", "tolist", "outside", "capture_scalar_outputs", "pad"]}]
