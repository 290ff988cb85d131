"""What is kept is a name inside; tensors are made where the input is."""

import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("scale", torch.tensor(0.5))
        self.width = None

    def forward(self, x):
        self.width = x.shape[-1]
        scores = self.fc(x * self.scale) + torch.arange(4, device=x.device)
        return scores * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)


def make():
    return Policy(), [(torch.rand(2, 4),)] * 3
