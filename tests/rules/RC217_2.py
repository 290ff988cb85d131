import torch
from torch import nn


# The forward itself asks for self.training.
class StochasticDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        if self.training:  # <- RC217
            keep = torch.rand(x.shape[0], 1) > 0.2
            return x + self.fc(x) * keep
        return x + self.fc(x) * 0.8


def before_call(model, index):
    model.train(index < 2)


def bad_2():
    return StochasticDepth(), [(torch.randn(3, 4),)] * 4
