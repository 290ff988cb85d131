"""A print in the layer, the layer called in the model's loop: the model's own forward is skipped, each layer breaks."""
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        print("layer done")
        return x.relu()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * 2


def make():
    return Model().requires_grad_(False), [(torch.randn(2, 4),)] * 3


EXPECT = [{"code": "GB104", "kind": "skipped_frame", "line": "print(", "severity": "high", "fix": ["is_compiling", "remove", "outside"]}]
