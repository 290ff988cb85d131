import torch
from torch import nn


# A recurrence over 64 time steps is unrolled into one graph.
def rnn(x):
    h = torch.zeros(16)
    for t in range(x.shape[0]):  # <- SP511
        h = torch.tanh(x[t] + h)
    return h


def bad():
    return rnn, [(torch.randn(64, 16),)] * 3


# The body of the unrolled loop is a module, called with its own output.
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, h):
        return torch.tanh(x + self.inner(h))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell()

    def forward(self, x):
        h, t = torch.zeros(8), 0
        while t < 32:  # run: SP511
            h = self.cell(x[t], h)
            t += 1
        return h


def bad_2():
    return Recurrent(), [(torch.randn(32, 8),)] * 3


# A loop over twelve layers: different modules, too few to be compiled apart.
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(8, 16)
        self.back = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.back(self.wide(x).relu())


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(12))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def good():
    return Loop(), [(torch.randn(4, 8),)] * 3
