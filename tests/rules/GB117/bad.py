"""sorted() with a tensor as the key (rank heads by importance)."""
import torch
from torch import nn


class HeadPruner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 6)

    def forward(self, x):
        heads = list(self.fc(x).chunk(3, dim=-1))
        ranked = sorted(heads, key=lambda head: head.norm())
        return ranked[-1] * 2


def make():
    return HeadPruner(), [(torch.randn(2, 4),)] * 2


EXPECT = [{"code": "GB117", "kind": "graph_break", "line": "sorted(heads", "fix": ["torch.sort", "topk", "argsort", "tensor"]}]
