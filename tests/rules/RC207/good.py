"""The sample gets its batch dimension before the call."""
import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(x).softmax(-1)


def make():
    samples = [torch.randn(4, 8), torch.randn(8).expand(4, 8).contiguous(), torch.randn(4, 8)]
    return Classifier(), [(x,) for x in samples]


EXPECT = []
