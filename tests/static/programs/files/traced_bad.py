"""One outcome is traced for all inputs."""

import torch
from torch import nn


def gate(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


class Scale(nn.Module):
    def forward(self, x):
        return x * self.factor(x)

    def factor(self, x):
        return x.max().item()  # <- GB101


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(x)


def gated(example):
    return torch.jit.trace(gate, example)  # <- TS101, TS102


def scaled(example):
    model = Scale()
    return torch.jit.trace(model, example)  # <- TS101, TS102


def dropped(example):
    return torch.jit.trace(Dropping(), example, check_trace=False)  # <- TS102, TS104
