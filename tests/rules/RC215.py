import enum
import torch


# Another function object is passed at every call.
def activate(x, fn):
    return fn(x) * 2  # run: RC215


def bad():
    return activate, [(torch.randn(4), fn) for fn in (torch.sin, torch.cos, torch.tanh)]


# An enum argument.
class Phase(enum.Enum):
    PREFILL = 0
    DECODE = 1


def block(x, phase):
    x = x * 2
    return x[-1:] if phase is Phase.DECODE else x  # run: RC215


def bad_4():
    return block, [(torch.randn(3, 4), phase) for phase in (Phase.PREFILL, Phase.DECODE, Phase.PREFILL)]


# A new lambda of the same code, a new object of the same class.
class Options:
    def __init__(self, width):
        self.width = width


def apply(x, fn, options):
    return fn(x) * options.width


def good():
    return apply, [(torch.randn(4), lambda t: t * 2, Options(2.0)) for _ in range(4)]
