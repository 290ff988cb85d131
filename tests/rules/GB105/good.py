"""The checksum is computed once, in __init__."""
import zlib

import torch
from torch import nn


class HashedEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 4)
        self.bucket = zlib.crc32(b"user") % 16

    def forward(self, x):
        x = self.table.weight.mean(0) + x
        return x + self.table.weight[self.bucket]


def make():
    return HashedEmbedding(), [(torch.randn(3, 4),)] * 3


EXPECT = []
