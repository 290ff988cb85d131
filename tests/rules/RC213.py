import torch
from torch import nn

OPTIONS = {"*": {"as_written": True}}


# Blocks compiled one by one differ in layer_idx but share one forward.
class Layer(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x) * (self.layer_idx + 1)  # <- RC213


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(torch.compile(Layer(index), backend="eager") for index in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def bad():
    return Model(), [(torch.randn(2, 4, requires_grad=True),)] * 2


# Each block counts its calls.
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.seen = 0

    def forward(self, x):  # <- RC208
        self.seen += 1  # <- RC213
        return x + self.fc(x)


class Model2(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(torch.compile(Block(), backend="eager") for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def bad_5():
    return Model2(), [(torch.randn(2, 4),)] * 4
