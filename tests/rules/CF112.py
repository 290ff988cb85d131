import torch
from torch import nn


# The state of a compiled module is saved.
def save(path):
    model = nn.Linear(2, 2)
    model = torch.compile(model, backend="eager")
    torch.save({"model": model.state_dict(), "step": 1}, path)  # <- CF112


def saved(model, path):
    fast = torch.compile(model, backend="eager")
    torch.save(fast.state_dict(), path)  # <- CF112


# The state of the module itself is saved.
def save_itself(path):
    model = nn.Linear(2, 2)
    model.compile(backend="eager")
    torch.save({"model": model.state_dict()}, path)


def saved_original(model, path):
    fast = torch.compile(model, backend="eager")
    torch.save(model.state_dict(), path)
    return fast
