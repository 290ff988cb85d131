import torch
from torch import nn


# Thirty-two equal blocks, compiled one after the other into one graph.
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(8, 16)
        self.back = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.back(self.wide(x).relu())


class Deep(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(count)))

    def forward(self, x):
        return self.blocks(x)  # run: SP513


def bad():
    return Deep(32), [(torch.randn(4, 8),)] * 3


# Twelve equal blocks are no reason to compile them apart.
def good():
    return Deep(12), [(torch.randn(4, 8),)] * 3
