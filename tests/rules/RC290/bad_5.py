"""Twelve blocks compiled one by one, each with its own layer_idx: the ninth and all after it run eagerly."""
import torch
from torch import nn

AS_WRITTEN = True


class Block(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.fc(x) / (self.layer_idx + 1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(index) for index in range(12))
        for block in self.blocks:
            block.compile(backend="eager")

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def make():
    return Model(), [(torch.randn(2, 4, requires_grad=True),)] * 2


EXPECT = [{"code": "RC290", "kind": "recompile_limit", "line": "self.layer_idx + 1", "severity": "high", "fix": ["tensor", "buffer", "allow_unspec_int_on_nn_module", "argument"]}]
