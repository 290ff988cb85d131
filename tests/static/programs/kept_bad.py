"""A forward keeps what it gives, and makes tensors on the CPU."""

import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scores = None

    def forward(self, x):
        x = x * torch.tensor(0.5)  # <- CG312
        x = x + torch.arange(4).to(x.device)  # <- CG312
        self.scores = self.fc(x)  # <- CG304
        return self.scores, x.cpu()  # <- CG312


def make():
    return Policy(), [(torch.rand(2, 4),)] * 3
