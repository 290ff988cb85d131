"""What a library's own `is_tracing` leaves out while compiling is not compiled."""
import torch
from torch import nn


def is_tracing(tensor):
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


class Checked(nn.Module):
    def forward(self, x):
        self.warn(x)
        if torch.jit.is_tracing():
            x = x * x.sum().item()
        return x * 2

    def warn(self, x):
        if is_tracing(x):
            return
        if x.sum() > 0:
            print("positive")


def make():
    return Checked(), [(torch.randn(4, 2),)]
