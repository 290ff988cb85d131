import collections
import dataclasses
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


# Sets and dicts of tensors, id, hash, deque without rotate, slots, metaclass.
class Registered(type):
    def __call__(cls, *args):
        return super().__call__(*args)


class Pair(metaclass=Registered):
    __slots__ = ("left", "right")

    def __init__(self, left, right):
        self.left = left
        self.right = right


class HeadPruner2(nn.Module):
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


def good():
    return HeadPruner2(), [(torch.randn(2, 4),)] * 3


# An f-string of a tensor that is only returned costs nothing.
Pair2 = collections.namedtuple("Pair", "loss logits")


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    weight: float = 1.0
    name: str = "train"


class Reporter(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, batch):
        logits = self.fc(batch.x)
        loss = logits.mean() * batch.weight
        text = f"{batch.name} loss {loss:.3f}"
        return {"pair": Pair2(loss, logits), "text": text, "copy": Batch(logits, batch.weight)}


def good_2():
    return Reporter(), [(Batch(torch.randn(2, 4)),) for _ in range(3)]
