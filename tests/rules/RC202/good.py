"""mark_unbacked: one graph for every batch size, 1 included."""
import torch
from torch import nn
from torch._dynamo.decorators import mark_unbacked


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(x).log_softmax(-1)


def make():
    inputs = [torch.randn(n, 8) for n in (6, 1, 7, 1)]
    for x in inputs:
        mark_unbacked(x, 0)
    return Head(), [(x,) for x in inputs]


EXPECT = []
