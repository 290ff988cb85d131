import torch
from torch import nn

OPTIONS = {"bad": {"as_written": True}, "bad_5": {"as_written": True}}


class Chain(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(torch.compile(each, backend="eager") for each in layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def before_call(model, index):
    if isinstance(model, Annealed):
        model.step = index


# Blocks compiled one by one differ in layer_idx but share one forward.
class Layer(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx

    def forward(self, x):
        return x * (self.layer_idx + 1)  # <- RC213


def bad():
    layers = [Layer(index) for index in range(4)]
    return Chain(layers), [(torch.randn(2, 4, requires_grad=True),)] * 2


# A step counter on the module, written by the training loop, used in the forward.
class Annealed(nn.Module):
    step = 0

    def forward(self, x):
        beta = min(1.0, self.step / 10)  # <- RC213
        return x * beta


def bad_3():
    return Annealed(), [(torch.randn(2, 4),)] * 5


# Each block counts its calls.
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.seen = 0

    def forward(self, x):  # <- RC208
        self.seen += 1  # <- RC213
        return x + self.fc(x)


def bad_5():
    return Chain([Block(), Block()]), [(torch.randn(2, 4),)] * 4
