"""The same print, guarded: Dynamo evaluates is_compiling() and drops the branch."""
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if not torch.compiler.is_compiling():
            print("q", q.shape, "k", k.shape)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


def make():
    return Attention(), [(torch.randn(2, 5, 8),) for _ in range(4)]


EXPECT = []
