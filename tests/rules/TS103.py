import torch
from torch import nn


# What torch.jit.script refuses.
def caught(x):
    try:  # <- TS103
        return x + 1
    except RuntimeError:
        return x


def sorted_by(x):
    order = sorted([2, 1], key=lambda n: -n)  # <- TS103
    return x * order[0]


def scaled(x, factor=2.0):  # <- TS103
    return x * factor


def gathered(x, *more):  # <- TS103
    return x


def bound(x):
    if (n := x.shape[0]) > 2:  # <- TS103
        return x * n
    return x


class Net(nn.Module):
    def forward(self, x):
        return self.inner(x)

    def inner(self, x):
        import math  # <- TS103

        return x * math.pi


def functions():
    yield lambda: torch.jit.script(caught)  # <- TS102
    yield lambda: torch.jit.script(sorted_by)  # <- TS102
    yield lambda: torch.jit.script(scaled)  # <- TS102
    yield lambda: torch.jit.script(gathered)  # <- TS102
    yield lambda: torch.jit.script(bound)  # <- TS102
    yield lambda: torch.jit.script(Net())  # <- TS102


# torch.compile takes the same Python as it is.
@torch.compile(backend="eager")
def compiled(x, factor=2.0, *more):
    order = sorted([2, 1], key=lambda n: -n)
    return x * factor * order[0]


class Plain(nn.Module):
    def forward(self, x):
        return self.ignored(x)

    def ignored(self, x):
        import math

        return x * math.pi
