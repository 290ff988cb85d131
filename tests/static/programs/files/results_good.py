"""What torch.compile returned is what is called."""

import pytest
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)

    def encode(self, x):
        return self.forward(x) * 2


def make():
    model = Net()
    model.encode = torch.compile(model.encode, backend="eager")
    fast = torch.compile(model, backend="eager")

    def run(x):
        fast.train()
        fast.to("cpu")
        return model.encode(x) + fast(x)

    return run, [(torch.ones(2, 4),)] * 2


def compared(model, x):
    fast = torch.compile(model, backend="eager")
    return model(x), fast(x)


def refused(function):
    with pytest.raises(RuntimeError):
        torch.compile(function, mode="default", options=None)


def text(sampler, x):
    sample = torch.compile(sampler, backend="eager")
    return sample(x).encode
