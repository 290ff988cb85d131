"""Blocks compiled one by one differ in layer_idx but share one forward: a recompile for every layer."""
import torch
from torch import nn

AS_WRITTEN = True


class Layer(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x) * (self.layer_idx + 1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(torch.compile(Layer(index), backend="eager") for index in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def make():
    return Model(), [(torch.randn(2, 4, requires_grad=True),)] * 2


EXPECT = [{"code": "RC213", "kind": "recompile", "line": "self.layer_idx + 1", "fix": ["tensor", "buffer", "argument", "allow_unspec_int_on_nn_module"]}]
