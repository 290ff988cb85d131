"""The state of the module itself is saved."""

import torch
from torch import nn


def save(path):
    model = nn.Linear(2, 2)
    model.compile(backend="eager")
    torch.save({"model": model.state_dict()}, path)


def saved(model, path):
    fast = torch.compile(model, backend="eager")
    torch.save(model.state_dict(), path)
    return fast
