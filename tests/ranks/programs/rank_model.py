"""A factory whose last call has a short batch on rank 1."""

import os

import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x).relu()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


wrap = "ddp"


def make():
    last = 3 if os.environ["RANK"] == "1" else 4
    return Net(), [(torch.randn(size, 8),) for size in (4, 4, last)]
