import torch
from torch import nn


# One outcome is traced for all inputs.
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


# Both sides are computed, and compiled or exported.
def selected(x):
    return torch.where(x.sum() > 0, x + 1, x - 1)


class Largest(nn.Module):
    def forward(self, x):
        return x * x.max()


def compiled():
    return torch.compile(selected, backend="eager")


def exported(example):
    return torch.export.export(Largest(), (example,))
