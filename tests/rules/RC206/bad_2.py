"""A module is moved to another device between calls, its input with it."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x).relu()


def make():
    return Net(), [(torch.randn(3, 4),), (torch.randn(3, 4, device="meta"),)]


def before_call(net, index):
    if index == 1:
        net.to("meta")


EXPECT = [{"code": "RC206", "kind": "recompile", "line": "def forward(self, x):", "fix": ["device"]}]
