"""The mask is always a tensor: all zeros where there is nothing to mask."""
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        if mask is not None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return F.scaled_dot_product_attention(q, k, v)


def make():
    x = torch.randn(2, 4, 8)
    mask = torch.zeros(2, 4, 4)
    return Attention(), [{"x": x, "mask": torch.zeros(2, 4, 4)}, {"x": x, "mask": mask}, {"x": x, "mask": mask}]


EXPECT = []
