"""A checksum of the configuration is computed by a C function on every forward."""
import zlib

import torch
from torch import nn


class HashedEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 4)
        self.names = ["user", "item"]

    def forward(self, x):
        x = self.table.weight.mean(0) + x
        bucket = zlib.crc32(b"user") % 16
        return x + self.table.weight[bucket]


def make():
    return HashedEmbedding(), [(torch.randn(3, 4),)] * 3


EXPECT = [{"code": "GB105", "kind": "graph_break", "line": "zlib.crc32(", "fix": ["outside", "__init__", "custom_op", "substitute_in_graph", "precompute", "custom op"]}]
