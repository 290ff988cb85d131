import torch
from torch import nn


# The counter is a buffer.
class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("step", torch.tensor(0.0))
        self.use_bias = True
        self.calls_seen = 0

    def forward(self, x):
        beta = (self.step / 10).clamp(max=1.0)
        y = self.fc(x) * beta
        return y + 1 if self.use_bias else y


def before_call(model, index):
    model.step.fill_(float(index))
    model.calls_seen = index


def good():
    return Annealed(), [(torch.randn(2, 4),)] * 5
