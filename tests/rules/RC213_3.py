import torch
from torch import nn


# A step counter on the module, written by the training loop, used in the forward.
class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.step = 0

    def forward(self, x):
        beta = min(1.0, self.step / 10)  # <- RC213
        return self.fc(x) * beta


def before_call(model, index):
    model.step = index


def bad_3():
    return Annealed(), [(torch.randn(2, 4),)] * 5
