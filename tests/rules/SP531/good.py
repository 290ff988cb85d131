"""The second batch size shows that it varies; from then on one graph serves all."""
import torch
from torch import nn

COMPILE = {"backend": "eager"}


def make(batch=4):
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU()), [(torch.randn(batch, 4),)]


EXPECT = []
