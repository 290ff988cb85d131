import collections
import contextvars
import enum
import functools
import hashlib
import itertools
import math
import numpy as np
import operator
import re
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


# hashlib inside the forward.
def salted(x, salt):
    x = x.relu()
    digest = hashlib.sha256(salt.encode()).hexdigest()  # <- GB105
    return x + len(digest)


def bad_2():
    return salted, [(torch.randn(4), "pepper")] * 2


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


# The checksum is computed once, in __init__.
class HashedEmbedding2(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 4)
        self.bucket = zlib.crc32(b"user") % 16

    def forward(self, x):
        x = self.table.weight.mean(0) + x
        return x + self.table.weight[self.bucket]


def good():
    return HashedEmbedding2(), [(torch.randn(3, 4),)] * 3


# Library code that Dynamo does trace.
LAYER = re.compile(r"layer\.(\d+)")


class Mode(enum.Enum):
    SUM = "sum"
    MEAN = "mean"


def frequencies(width):
    return [1.0 / 10000 ** (i / width) for i in range(0, width, 2)]


def mixed(x, name):
    match = LAYER.search(name)
    depth = int(match.group(1)) if match else 0
    total = functools.reduce(operator.add, [x, x * 2])
    for a, b in itertools.pairwise(frequencies(6)):
        total = total + a * math.sqrt(b)
    groups = collections.defaultdict(list)
    for index, row in enumerate(total):
        groups[index % 2].append(row)
    mode = Mode("sum")
    halves = [torch.stack(rows).sum(0) if mode is Mode.SUM else rows[0] for rows in groups.values()]
    return operator.itemgetter(0)(halves) * depth + collections.Counter("aab")["a"]


def good_2():
    return mixed, [(torch.randn(2, 6), "block.layer.3.weight")] * 3
