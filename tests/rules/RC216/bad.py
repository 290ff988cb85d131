"""Validation runs under no_grad: the grad mode is part of every guard."""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x).softmax(-1)


def make():
    return Model(), [(torch.randn(2, 4),)] * 4


def before_call(model, index):
    torch.set_grad_enabled(index != 2)


EXPECT = [{"code": "RC216", "kind": "recompile", "line": "def forward(self, x):", "fix": ["no_grad", "grad mode", "inference_mode", "set_grad_enabled", "warm up"]}]
