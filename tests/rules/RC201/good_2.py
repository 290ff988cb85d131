"""A key/value cache in a buffer of fixed size: the shapes never change while the position does."""
import torch
import torch.nn.functional as F
from torch import nn


class StaticCache(nn.Module):
    def __init__(self, longest=8, width=4):
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, longest, width))
        self.register_buffer("values", torch.zeros(1, longest, width))
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, token, position):
        q, k, v = self.qkv(token).chunk(3, -1)
        with torch.no_grad():
            self.keys.index_copy_(1, position, k)
            self.values.index_copy_(1, position, v)
        mask = torch.arange(self.keys.shape[1]) <= position
        return F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask[None, None])


def make():
    return StaticCache(), [(torch.randn(1, 1, 4), torch.tensor([i])) for i in range(5)]


EXPECT = []
