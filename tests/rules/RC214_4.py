import torch


# Globals that stay as they are.
SCALE = 0.5
TABLE = torch.arange(4.0)


def lookup(x):
    return x * SCALE + TABLE


def before_call(fn, index):
    global TABLE
    TABLE = torch.arange(4.0) + index


def good():
    return lookup, [(torch.randn(4),)] * 4
