import contextlib
import torch
from torch import nn


# A helper the author has marked @torch.compiler.disable.
@torch.compiler.disable(reason="writes into the metrics store")
def record(store, value):
    store["max"] = value.max()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(8, 2)
        self.store = {}

    def forward(self, x):
        h = self.a(x).relu()
        record(self.store, h)  # <- GB106
        return self.b(h)


def bad():
    return Model(), [(torch.randn(3, 4),)] * 3


# A disabled helper is called inside a user's context manager.
@contextlib.contextmanager
def section(name):
    yield name


@torch.compiler.disable
def log_scale(x):
    return float(x.detach().abs().max())


class Net2(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        with section("first"):
            x = self.a(x)
            scale = log_scale(x)  # <- GB106
            x = x.relu()
        return self.b(x), scale


def bad_4():  # <- NC805
    return Net2(), [(torch.randn(2, 4),)] * 3


# The same helper without the decorator is traced.
def record2(store, value):
    store["max"] = value.max()


class Model2(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(8, 2)

    def forward(self, x):
        store = {}
        h = self.a(x).relu()
        record2(store, h)
        return self.b(h), store


def good():
    return Model2(), [(torch.randn(3, 4),)] * 3
