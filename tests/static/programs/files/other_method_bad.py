"""A compiled module's other method is called."""

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
    model = torch.compile(Net(), backend="eager")

    def run(x):
        return model.encode(x)  # <- NC802

    return run, [(torch.ones(2, 4),)] * 2


def generate(model, ids):
    model = torch.compile(model, backend="eager")
    return model.generate(ids)  # <- NC802
