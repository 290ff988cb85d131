"""Something else is called than what torch.compile returned."""

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


class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 2)
        self.compiled = torch.compile(self.model, backend="eager")

    def step(self, x):
        return self.model(x).sum()  # <- NC803


def make():
    trainer, model = Trainer(), torch.compile(Net(), backend="eager")

    def run(x):
        return trainer.step(x) + model.encode(x)  # <- NC802

    return run, [(torch.ones(2, 4),)] * 2


def other(model, x):
    fast = torch.compile(model, backend="eager")
    return model(x)  # <- NC803


def generate(model, ids):
    model = torch.compile(model, backend="eager")
    return model.generate(ids)  # <- NC802


def thrown_away(x):
    model = nn.Linear(4, 4)
    torch.compile(model, backend="eager")  # <- NC801
    return model(x)
