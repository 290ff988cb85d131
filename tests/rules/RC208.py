import torch
from torch import nn


# Inputs require grad in adversarial steps only.
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, image):  # <- RC208
        return self.fc(image).sum()


def bad():
    return Model(), [(torch.randn(3, 4),), (torch.randn(3, 4, requires_grad=True),), (torch.randn(3, 4),)]


# requires_grad is the same on every call.
def good():
    return Model(), [(torch.randn(3, 4, requires_grad=True),) for _ in range(3)]
