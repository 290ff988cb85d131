"""torch.compile of the model itself."""

import torch


def plain(model):
    return torch.compile(model, backend="eager")
