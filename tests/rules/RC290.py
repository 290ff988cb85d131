import torch
import torch._dynamo
from torch import nn

OPTIONS = {"bad_2": {"compile": {"dynamic": False}}, "bad_5": {"as_written": True}}


# A module that counts its own calls.
class Smoothed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.updates = 0

    def forward(self, x):
        self.updates += 1  # <- RC213, RC290
        return self.fc(x) / self.updates


def bad():
    return Smoothed(), [(torch.randn(2, 4),)] * 12


# Twelve blocks compiled one by one, each with its own layer_idx.
class Block(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.fc(x) / (self.layer_idx + 1)  # <- RC213, RC290


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(index) for index in range(12))
        for block in self.blocks:
            block.compile(backend="eager")  # <- NC805

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def bad_5():
    return Model(), [(torch.randn(2, 4, requires_grad=True),)] * 2


# A lower limit set by the user is soon hit by a dtype argument.
def cast(x, dtype):
    y = x.to(dtype)  # <- RC290, RC210
    return y * 2


def bad_6():
    torch._dynamo.config.recompile_limit = 2
    return cast, [(torch.ones(4), dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32)]


# The counter is a buffer.
class Smoothed2(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("updates", torch.zeros(()))

    def forward(self, x):
        self.updates += 1
        return self.fc(x) / self.updates


def good():
    return Smoothed2(), [(torch.randn(2, 4),)] * 12
