import torch
from torch import nn


# Gradual unfreezing.
class Finetune(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.body.requires_grad_(False)

    def forward(self, x):  # <- RC208>=2.13
        return self.head(self.body(x).relu())


def before_call(model, index):
    if index == 2:
        model.body.requires_grad_(True)


def bad_2():
    return Finetune(), [(torch.randn(3, 4),)] * 4
