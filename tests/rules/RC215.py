import enum
import torch
from torch import nn


# Another function object is passed at every call.
ACTIVATIONS = [torch.sin, torch.cos, torch.tanh]


def activate(x, fn):
    return fn(x) * 2  # <- RC215


def bad():
    return activate, [(torch.randn(4), fn) for fn in ACTIVATIONS]


# A class made at run time.
def config(width):
    return type("Config", (), {"width": width})()


def project(x, settings):
    return x * settings.width  # <- RC215


def bad_2():
    return project, [(torch.randn(4), config(2.0)) for _ in range(4)]


# An enum argument.
class Phase(enum.Enum):
    PREFILL = 0
    DECODE = 1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, phase):
        x = self.fc(x)
        return x[-1:] if phase is Phase.DECODE else x  # <- RC215


def bad_4():
    return Block(), [(torch.randn(3, 4), phase) for phase in (Phase.PREFILL, Phase.DECODE, Phase.PREFILL)]


# A new lambda of the same code.
class Options:
    def __init__(self, width):
        self.width = width


class Block2(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x).relu()


def apply(x, fn, options, block):
    return block(fn(x)) * options.width


def good():
    return apply, [(torch.randn(4), lambda t: t * 2, Options(2.0), Block2()) for _ in range(4)]
