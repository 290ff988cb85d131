import torch
from torch import nn


# BatchNorm and dropout in train mode throughout.
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(self.frozen(x)))


def good():
    return Net(), [(torch.randn(3, 4),) for _ in range(4)]
