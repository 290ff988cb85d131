"""A helper the author has marked @torch.compiler.disable: a break, but a chosen one."""
import torch
from torch import nn


@torch.compiler.disable(reason="writes into the metrics store")
def record(store, value):
    store["max"] = value.max()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(8, 2)
        self.store = {}

    def forward(self, x):
        h = self.a(x).relu()
        record(self.store, h)
        return self.b(h)


def make():
    return Model(), [(torch.randn(3, 4),)] * 3


EXPECT = [{"code": "GB106", "kind": "graph_break", "line": "record(self.store, h)", "status": "intentional", "fix": ["disable", "intended", "intentional", "outside", "move"]}]
