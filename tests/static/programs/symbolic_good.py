"""The bool is plain: a condition decides it, or a setting does."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.is_causal = True

    def forward(self, x):  # run: RC201
        causal = True if x.shape[2] > 1 else False
        x = F.scaled_dot_product_attention(x, x, x, is_causal=causal)
        x = F.scaled_dot_product_attention(x, x, x, is_causal=self.is_causal)
        scale = 0.1 if x.shape[2] > 1 else 0.0
        return F.dropout(x, scale, training=self.training)


def make():
    return Attention(), [(torch.rand(1, 2, length, 8),) for length in (3, 4, 5)]
