import logging
import sys
import torch
from torch import nn


# logger.info in a function.
logger = logging.getLogger("trainer")


def encode(x):
    h = x.relu()
    logger.info("hidden %s", tuple(h.shape))  # <- GB104
    return h * 2


def bad():
    return encode, [(torch.randn(2, 4),)] * 3


# A home-made progress bar that writes to the terminal inside the layer loop.
def stack(x):
    for _ in range(3):
        x = x.tanh()
        sys.stdout.write("#")  # <- GB104
    return x


def bad_4():  # <- NC805
    return stack, [(torch.randn(2, 4),)] * 3


# A print in the layer, the layer called in the model's loop.
class Layer(nn.Module):
    def forward(self, x):
        x = x * 2
        print("layer done", x.shape)  # <- GB104
        return x.relu()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * 2


def bad_7():
    return Model(), [(torch.randn(2, 4),)] * 3
