"""A dictionary whose keys change from batch to batch."""
import torch
from torch import nn


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(4, 2) for name in ("a", "b", "c")})

    def forward(self, batch):
        return {name: self.heads[name](x) for name, x in batch.items()}


def make():
    return MultiTask(), [({name: torch.randn(2, 4) for name in names},) for names in ("ab", "ac", "bc")]


EXPECT = [{"code": "RC212", "kind": "recompile", "line": "for name, x in batch.items()", "fix": ["keys", "same", "fixed"]}]
