import torch
from torch import nn


def before_call(model, index):
    if index == 2 and isinstance(model, nn.Module):
        model.body.requires_grad_(True)


# Inputs require grad in adversarial steps only.
def attacked(image):  # <- RC208
    return (image * 2).sum()


def bad():
    return attacked, [(torch.randn(3, 4, requires_grad=each),) for each in (False, True, False)]


# Gradual unfreezing.
class Finetune(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.body.requires_grad_(False)

    def forward(self, x):  # <- RC208>=2.13
        return self.head(self.body(x).relu())


def bad_2():
    return Finetune(), [(torch.randn(3, 4),)] * 4


# requires_grad is the same on every call.
def good():
    return attacked, [(torch.randn(3, 4, requires_grad=True),) for _ in range(3)]
