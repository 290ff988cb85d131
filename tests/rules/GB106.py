import torch


# A helper the author has marked @torch.compiler.disable.
def record(store, value):
    store["max"] = value.max()


disabled = torch.compiler.disable(record, reason="writes into the metrics store")


def recorded(x):
    store, h = {}, x.relu()
    disabled(store, h)  # run: GB106
    return h * 2, store


def bad():
    return recorded, [(torch.randn(3, 4),)] * 3


# The same helper without the decorator is traced.
def traced(x):
    store, h = {}, x.relu()
    record(store, h)
    return h * 2, store


def good():
    return traced, [(torch.randn(3, 4),)] * 3
