"""The wrapper gets a new name, and the loop goes on using the old one."""
import torch
from torch import nn

AS_WRITTEN = True


class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 2)
        self.compiled = torch.compile(self.model, backend="eager")

    def step(self, x):
        return self.model(x).sum()


def make():
    trainer = Trainer()

    def run(x):
        return trainer.step(x)

    return run, [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "NC803", "kind": "no_op", "line": "self.compiled = torch.compile(", "severity": "high", "fix": ["compiled", "call", "assign"]}]
