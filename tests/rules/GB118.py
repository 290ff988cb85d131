import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"*": {"compile": {"dynamic": True}}, "bad": {}}


# `is_causal` from a comparison of a size.
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):  # <- RC201
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        causal = query.shape[1] > 1
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal)  # <- GB118


def bad():
    return Attention(), [(torch.randn(2, length, 8),) for length in (4, 6, 9, 12)]


# An overloaded operator names no argument in words, only the types it was given.
def spread(x):  # <- RC203
    y = x * 2
    return torch.std(y, 1, unbiased=x.shape[1] > 4)  # <- GB118


def bad_2():
    return spread, [(torch.randn(2, length, 8),) for length in (8, 6, 9, 12)]
