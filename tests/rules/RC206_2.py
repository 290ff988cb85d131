import torch
from torch import nn


# A module is moved to another device between calls, its input with it.
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):  # <- RC206
        return self.fc(x).relu()


def before_call(net, index):
    if index == 1:
        net.to("meta")


def bad_2():
    return Net(), [(torch.randn(3, 4),), (torch.randn(3, 4, device="meta"),)]
