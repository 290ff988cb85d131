"""`is_causal` from a comparison of a size: a plain bool at first, a symbol once the length varies."""
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        causal = query.shape[1] > 1
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal)


def make():
    return Attention(), [(torch.randn(2, length, 8),) for length in (4, 6, 9, 12)]


EXPECT = [
    {"code": "GB118", "kind": "graph_break", "line": "is_causal=causal", "fix": ["plain value", "is_causal=True"]},
]
