"""The two arguments are always two tensors."""
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(8, 8)
        self.kv = nn.Linear(8, 8)

    def forward(self, x, context):
        return torch.softmax(self.q(x) @ self.kv(context).transpose(-1, -2), -1)


def make():
    x, context = torch.randn(4, 8), torch.randn(4, 8)
    return Attention(), [(x, x.clone()), (x, context), (context, context.clone())]


EXPECT = []
