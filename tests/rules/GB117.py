import collections
import torch
from torch import nn


# sorted() with a tensor as the key (rank heads by importance).
class HeadPruner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 6)

    def forward(self, x):
        heads = list(self.fc(x).chunk(3, dim=-1))
        ranked = sorted(heads, key=lambda head: head.norm())  # <- GB117
        return ranked[-1] * 2


def bad():
    return HeadPruner(), [(torch.randn(2, 4),)] * 2


# repr() of a tensor builds a cache key.
def keyed(x):
    x = x.round()
    key = repr(x)  # <- GB117
    return x * 2, key


def bad_2():
    return keyed, [(torch.ones(4),)] * 2


# deque.rotate on a ring buffer of states.
def ring(x):
    states = collections.deque([x, x * 2, x * 3], maxlen=3)
    states.rotate(1)  # <- GB117<2.14
    return states[0] + states[1]


def bad_4():
    return ring, [(torch.randn(4),)] * 2


# globals() picks an activation by name on every call.
def swish(x):
    return x * x.sigmoid()


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.activation = "swish"

    def forward(self, x):
        x = self.fc(x)
        function = globals()[self.activation]  # <- GB117
        return function(x)


def bad_5():
    return FeedForward(), [(torch.randn(2, 4),)] * 2
