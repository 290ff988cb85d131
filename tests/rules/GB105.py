import contextvars
import numpy as np
import torch
import zlib
from torch import nn
from torch.utils.data import TensorDataset


# A checksum of the configuration is computed by a C function on every forward.
class HashedEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 4)
        self.names = ["user", "item"]

    def forward(self, x):
        x = self.table.weight.mean(0) + x
        bucket = zlib.crc32(b"user") % 16  # <- GB105
        return x + self.table.weight[bucket]


def bad():
    return HashedEmbedding(), [(torch.randn(3, 4),)] * 3


# A numpy function that torch does not know runs as plain Python.
def tone_curve(image, curve):
    image = image.clamp(0, 1)
    mapped = np.interp(image.numpy(), [0.0, 0.5, 1.0], curve)  # <- GB105
    return torch.from_numpy(mapped).float().sqrt()


def bad_4():
    return tone_curve, [(torch.rand(4, 4), [0.0, 0.7, 1.0])] * 2


# A context variable is read in the forward (request-scoped settings).
SCALE = contextvars.ContextVar("scale", default=2.0)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x).tanh()
        factor = SCALE.get()  # <- GB105<2.14
        return x * factor


def bad_6():
    return Scaled(), [(torch.randn(2, 4),)] * 2


# A data set is indexed inside the compiled function.
def bad_7():
    data = TensorDataset(torch.randn(6, 4))

    def compare(x):
        x = x.tanh()
        (reference,) = data[2]  # <- GB105
        return x - reference

    return compare, [(torch.randn(4),)] * 2


# A break among the arguments of a tensor's method.
def replace(x, seen, mask):
    y = x * 2
    y[mask] = seen.view_as(y[mask])  # <- GB103, GB105
    return y + 1


def bad_8():
    mask = torch.tensor([True, False, True, False])
    return replace, [(torch.randn(4, 8), torch.randn(16), mask) for _ in range(3)]
