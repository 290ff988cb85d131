import torch
import torch._dynamo
from torch import nn


# An explicit graph break between two halves of a network.
class TwoStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 8)
        self.decoder = nn.Linear(8, 4)

    def forward(self, x):
        code = self.encoder(x).relu()
        torch._dynamo.graph_break()  # <- GB107
        return self.decoder(code)


def bad():
    return TwoStage(), [(torch.randn(2, 4),)] * 3


# The same network in one piece.
class TwoStage2(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 8)
        self.decoder = nn.Linear(8, 4)

    def forward(self, x):
        code = self.encoder(x).relu()
        return self.decoder(code)


def good():
    return TwoStage2(), [(torch.randn(2, 4),)] * 3
