"""The result of torch.compile is thrown away."""

import torch
from torch import nn


def make():
    model = nn.Linear(4, 4)
    torch.compile(model, backend="eager")  # <- NC801
    return model, [(torch.ones(2, 4),)] * 2
