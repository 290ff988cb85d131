"""requires_grad is the same on every call."""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, image):
        return self.fc(image).sum()


def make():
    return Model(), [(torch.randn(3, 4, requires_grad=True),) for _ in range(3)]


EXPECT = []
