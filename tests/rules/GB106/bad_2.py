"""A disabled method in the middle of a block (tricky maths kept in eager)."""
import torch
from torch import nn


class Quantiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.pre = nn.Linear(4, 4)

    @torch.compiler.disable
    def codebook(self, x):
        return (x * 8).round() / 8

    def forward(self, x):
        x = self.pre(x)
        x = self.codebook(x)
        return x.tanh()


def make():
    return Quantiser(), [(torch.randn(2, 4),)] * 2


EXPECT = [{"code": "GB106", "kind": "graph_break", "line": "self.codebook(x)", "status": "intentional", "fix": ["disable", "intended", "intentional", "outside", "move"]}]
