import torch
import torch._dynamo
from torch import nn

OPTIONS = {"bad_5": {"as_written": True}}


# A module that counts its own calls.
class Smoothed(nn.Module):
    def __init__(self):
        super().__init__()
        self.updates = 0

    def forward(self, x):
        self.updates += 1  # <- RC213 # run: RC290
        return x / self.updates


def bad():
    return Smoothed(), [(torch.randn(2, 4),)] * 12


# Twelve blocks compiled one by one, each with its own layer_idx.
class Block(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx

    def forward(self, x):
        return x + x / (self.layer_idx + 1)  # run: RC213, RC290


def bad_5():
    blocks = [Block(index) for index in range(12)]
    for block in blocks:
        block.compile(backend="eager")  # run: NC805

    def model(x):
        for block in blocks:
            x = block(x)
        return x

    return model, [(torch.randn(2, 4, requires_grad=True),)] * 2


# A lower limit set by the user is soon hit by a dtype argument.
def cast(x, dtype):
    y = x.to(dtype)  # run: RC290, RC210
    return y * 2


def bad_6():
    torch._dynamo.config.recompile_limit = 2
    return cast, [(torch.ones(4), dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32)]


# The counter is a buffer.
class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("updates", torch.zeros(()))

    def forward(self, x):
        self.updates += 1
        return x / self.updates


def good():
    return Counted(), [(torch.randn(2, 4),)] * 12
