import torch
from torch import nn


# A scripted module inside the compiled model.
class Hybrid(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = x * 2
        features = self.backbone(x)  # <- GB199
        return self.head(features)


def bad():  # <- NC805
    return Hybrid(), [(torch.randn(2, 4),)] * 3


# The same model as plain modules.
class Hybrid2(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = x * 2
        features = self.backbone(x)
        return self.head(features)


def good():
    return Hybrid2(), [(torch.randn(2, 4),)] * 3
