"""Parameters changed in place under no_grad (weight averaging) and a plain tensor subclass are traced."""
import torch
from torch import nn


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("shadow", self.fc.weight.detach().clone())

    def forward(self, x):
        with torch.no_grad():
            self.shadow.lerp_(self.fc.weight, 0.1)
        return self.fc(x) + x @ self.shadow


def make():
    return Averaged(), [(torch.randn(2, 4),)] * 3


EXPECT = []
