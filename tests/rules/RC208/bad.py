"""Inputs require grad in adversarial steps only."""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, image):
        return self.fc(image).sum()


def make():
    return Model(), [(torch.randn(3, 4),), (torch.randn(3, 4, requires_grad=True),), (torch.randn(3, 4),)]


EXPECT = [{"code": "RC208", "kind": "recompile", "line": "def forward(self, image):", "fix": ["requires_grad", "detach"]}]
