"""Gradual unfreezing: a layer of the compiled module starts to require grad."""
import torch
from torch import nn


class Finetune(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.body.requires_grad_(False)

    def forward(self, x):
        return self.head(self.body(x).relu())


def make():
    return Finetune(), [(torch.randn(3, 4),)] * 4


def before_call(model, index):
    if index == 2:
        model.body.requires_grad_(True)


EXPECT = [{"code": "RC208", "kind": "recompile", "line": "def forward(self, x):", "fix": ["requires_grad", "freez", "before"], "torch": ">=2.13"}]
