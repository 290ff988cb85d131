"""A private torch.Generator for reproducible noise."""
import torch
from torch import nn


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.generator = torch.Generator()

    def forward(self, x):
        x = self.fc(x)
        noise = torch.randn(x.shape, generator=self.generator)
        return x + 0.1 * noise


def make():
    return Noisy(), [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "GB115", "kind": "graph_break", "line": "generator=self.generator", "fix": ["enerator", "outside", "manual_seed", "argument", "pass"]}]
