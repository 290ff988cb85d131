"""The original is called, and the compiled one is not."""

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 2)
        self.compiled = torch.compile(self.model, backend="eager")

    def step(self, x):
        return self.model(x).sum()  # <- NC803


def make():
    trainer = Trainer()

    def run(x):
        return trainer.step(x)

    return run, [(torch.ones(2, 4),)] * 2


def other(model, x):
    fast = torch.compile(model, backend="eager")
    return model(x)  # <- NC803
