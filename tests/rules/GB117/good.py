"""Sets and dicts of tensors, id, hash, deque without rotate, slots, metaclass, __getattr__: all traced."""
import collections

import torch
from torch import nn


class Registered(type):
    def __call__(cls, *args):
        return super().__call__(*args)


class Pair(metaclass=Registered):
    __slots__ = ("left", "right")

    def __init__(self, left, right):
        self.left = left
        self.right = right


class HeadPruner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 6)

    def forward(self, x):
        heads = self.fc(x).unflatten(-1, (3, 2))
        order = heads.norm(dim=(0, 2)).argsort()
        ranked = heads[:, order]
        recent = collections.deque([x, x * 2], maxlen=2)
        recent.append(x * 3)
        unique = {ranked, ranked}
        names = sorted(["b", "a"], key=str.upper)
        pair = Pair(recent[0], ranked)
        return pair.left.sum() + pair.right[:, -1] + len(unique) + len(f"{names[0]} {tuple(x.shape)}")


def make():
    return HeadPruner(), [(torch.randn(2, 4),)] * 3


EXPECT = []
