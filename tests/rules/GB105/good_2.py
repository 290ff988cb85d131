"""Library code that Dynamo does trace: re, operator, functools, itertools, math, collections, enum."""
import collections
import enum
import functools
import itertools
import math
import operator
import re

import torch

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


def make():
    return mixed, [(torch.randn(2, 6), "block.layer.3.weight")] * 3


EXPECT = []
