import torch
from torch._dynamo.decorators import mark_unbacked


# `and` between two tensor conditions in a helper that decides on early exit.
def confident(p):
    return p.max() > 2.0 and p.min() >= 0.0  # <- GB102


def early_exit(x):
    p = x.softmax(-1)
    if confident(p):  # <- GB102
        return p
    return p * 2


def bad():
    return early_exit, [(torch.randn(2, 4),)] * 2


# A generator that branches on data.
def active_rows(x):
    for row in x:
        if row.sum() > 0:  # <- GB102
            yield row


def pool(x):
    x = x * 2
    total = torch.zeros(4)
    for row in active_rows(x):
        total = total + row
    return total


def bad_7():  # <- NC805
    return pool, [(torch.ones(3, 4),)] * 3


# A batch dimension marked unbacked, and a branch on it.
def normalise(x):
    if x.shape[0] > 4:  # <- GB102
        return x / x.shape[0]
    return x * 2


def bad_9():
    inputs = [torch.randn(n, 3) for n in (8, 3)]
    for x in inputs:
        mark_unbacked(x, 0)
    return normalise, [(x,) for x in inputs]
