"""The two arguments are always two tensors."""
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 8)

    def forward(self, x, context):
        scores = x @ context.transpose(-1, -2)
        return self.out(scores.softmax(-1) @ context)


def make():
    x, context = torch.randn(4, 8), torch.randn(4, 8)
    return Attention(), [(x, x.clone()), (x, context), (context, context.clone())]


EXPECT = []
