import torch
from torch import nn


def before_call(model, index):
    model.step = index


# A step counter on the module, written by the training loop, used in the forward.
class Annealed(nn.Module):
    step = 0

    def forward(self, x):
        beta = min(1.0, self.step / 10)  # <- RC213
        return x * beta


def bad_3():
    return Annealed(), [(torch.randn(2, 4),)] * 5
