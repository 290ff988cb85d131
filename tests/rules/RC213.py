import torch
from torch import nn


# A module that counts its calls.
class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.calls = 0
        self.steps: int = 0

    def forward(self, x):
        self.calls += 1  # <- RC213
        self.steps = self.steps + 1  # read: RC213
        return self.fc(x)


def bad():
    return Counted(), [(torch.rand(2, 4),)] * 4
