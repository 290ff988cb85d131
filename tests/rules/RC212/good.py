"""A list and a dict of constant length and keys."""
import torch
from torch import nn


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(4, 2) for name in ("a", "b", "c")})

    def forward(self, batch, past):
        total = sum(past)
        return {name: self.heads[name](x) + total for name, x in batch.items()}


def make():
    return MultiTask(), [({name: torch.randn(2, 4) for name in "abc"}, [torch.randn(2) for _ in range(3)]) for _ in range(4)]


EXPECT = []
