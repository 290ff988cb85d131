"""A step counter on the module, written by the training loop, used in the forward."""
import torch
from torch import nn


class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.step = 0

    def forward(self, x):
        beta = min(1.0, self.step / 10)
        return self.fc(x) * beta


def make():
    return Annealed(), [(torch.randn(2, 4),)] * 5


def before_call(model, index):
    model.step = index


EXPECT = [{"code": "RC213", "kind": "recompile", "line": "self.step / 10", "fix": ["tensor", "buffer", "argument", "allow_unspec_int_on_nn_module"]}]
