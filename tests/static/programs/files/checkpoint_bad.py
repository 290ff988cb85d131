"""The state of a compiled module is saved."""

import torch
from torch import nn


def save(path):
    model = nn.Linear(2, 2)
    model = torch.compile(model, backend="eager")
    torch.save({"model": model.state_dict(), "step": 1}, path)  # <- CF112


def saved(model, path):
    fast = torch.compile(model, backend="eager")
    torch.save(fast.state_dict(), path)  # <- CF112
