"""The default stance, set explicitly."""
import torch
from torch import nn

AS_WRITTEN = True


def make():
    torch.compiler.set_stance("default")
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")

    def step(x):
        return model(x).sum()

    return step, [(torch.randn(2, 4),)] * 3


EXPECT = []
