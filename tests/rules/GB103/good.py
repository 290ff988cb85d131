"""The mask is applied through ignore_index: every shape is known."""
import torch
import torch.nn.functional as F
from torch import nn


class MaskedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, ids, labels):
        hidden = self.embed(ids)
        logits = self.head(hidden)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1)


def make():
    ids = torch.randint(0, 10, (2, 6))
    labels = torch.tensor([[1, -1, 2, -1, -1, 3], [-1, -1, 4, 5, -1, -1]])
    return MaskedLM(), [(ids, labels)] * 3


EXPECT = []
