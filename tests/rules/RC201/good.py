"""The changing dimension is marked before the first call: one graph."""
import torch
import torch._dynamo
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.fc = nn.Linear(8, 8)

    def forward(self, ids):
        return self.fc(self.embed(ids)).mean(1)


def make():
    inputs = [torch.zeros(2, length, dtype=torch.long) for length in (5, 6, 7, 8)]
    for ids in inputs:
        torch._dynamo.mark_dynamic(ids, 1)
    return Encoder(), [(ids,) for ids in inputs]


EXPECT = []
