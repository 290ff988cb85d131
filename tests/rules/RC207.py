import torch
from torch import nn


# A single sample comes without a batch dimension.
class Classifier(nn.Module):
    def forward(self, x):  # <- RC207
        return (x * 2).softmax(-1)


def bad():
    return Classifier(), [(torch.randn(4, 8),), (torch.randn(8),), (torch.randn(4, 8),)]


# The sample gets its batch dimension before the call.
class Classifier2(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(x).softmax(-1)


def good():
    samples = [torch.randn(4, 8), torch.randn(8).expand(4, 8).contiguous(), torch.randn(4, 8)]
    return Classifier2(), [(x,) for x in samples]
