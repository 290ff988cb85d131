import logging
import sys
import torch
import torch.nn.functional as F
import warnings
from torch import nn


# A debug print left in the forward of an attention block.
class Attention(nn.Module):
    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        print("q", q.shape, "k", k.shape)  # <- GB104
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


def bad():
    return Attention(), [(torch.randn(2, 5, 8),) for _ in range(4)]


# logger.info in the forward.
logger = logging.getLogger("trainer")


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(8, 4)

    def forward(self, x):
        h = self.a(x).relu()
        logger.info("hidden %s", tuple(h.shape))  # <- GB104
        return self.b(h)


def bad_2():
    return Encoder(), [(torch.randn(2, 4),)] * 3


# A deprecation warning raised on every call.
def scale(x, factor=None):
    x = x.sigmoid()
    if factor is None:
        warnings.warn("factor will be required", stacklevel=2)  # <- GB104
        factor = 2.0
    return x * factor


def bad_3():
    return scale, [(torch.randn(4),)] * 3


# A home-made progress bar that writes to the terminal inside the layer loop.
class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
            sys.stdout.write("#")  # <- GB104
        return x


def bad_4():  # <- NC805
    return Stack(), [(torch.randn(2, 4),)] * 3


# A forward hook that prints breaks the graph of the module it watches.
def watch(module, inputs, output):
    print("activation std", output.std())  # <- GB104


def bad_5():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    net[0].register_forward_hook(watch)
    return net, [(torch.randn(3, 4),)] * 3


# A print in the layer, the layer called in the model's loop.
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        print("layer done")  # <- GB104
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
    return Model().requires_grad_(False), [(torch.randn(2, 4),)] * 3
