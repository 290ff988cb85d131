"""A count in a buffer, and a count outside of what is compiled."""

import torch
from torch import nn


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.epochs = 0
        self.size = 0

    def next_epoch(self):
        self.epochs += 1

    def forward(self, x):
        self.calls += 1
        self.size = 4
        count = 0
        count += 1
        return self.fc(x) * count


def make():
    return Counted(), [(torch.rand(2, 4),)] * 4
