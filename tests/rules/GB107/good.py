"""The same network in one piece."""
import torch
from torch import nn


class TwoStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 8)
        self.decoder = nn.Linear(8, 4)

    def forward(self, x):
        code = self.encoder(x).relu()
        return self.decoder(code)


def make():
    return TwoStage(), [(torch.randn(2, 4),)] * 3


EXPECT = []
