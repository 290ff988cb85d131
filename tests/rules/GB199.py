import torch
from torch import nn


# A scripted module inside the compiled model, and the same as a plain module.
class Hybrid(nn.Module):
    def __init__(self, make=lambda module: module):
        super().__init__()
        self.backbone = make(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    def forward(self, x):
        x = x * 2
        return self.backbone(x) * 2  # run: GB199


def bad():  # run: NC805
    return Hybrid(torch.jit.script), [(torch.randn(2, 4),)] * 3


def good():
    return Hybrid(), [(torch.randn(2, 4),)] * 3
