"""`os.getenv` keeps the value that it had while tracing.

torch reads it once and does not guard it: later changes have no effect on compiled
code. For `os.environ[...]` the value is guarded, but not the absence of a variable.

Workaround: read it outside and pass the value.

Group: stale
Code: NM411
Reference: https://github.com/pytorch/pytorch/pull/189027
"""

import os

import torch

os.environ["GAIN"] = "low"


def scaled(x):
    return x * (3 if os.getenv("GAIN") == "high" else 1)


def make():
    return scaled, [(torch.ones(2),)] * 2


def before_call(fn, index):
    os.environ["GAIN"] = ("low", "high")[index]


fast, x = torch.compile(scaled, backend="eager"), torch.ones(2)
fast(x)
os.environ["GAIN"] = "high"
assert scaled(x).tolist() == [3, 3] and fast(x).tolist() == [1, 1]

# The workaround
fast = torch.compile(lambda x, gain: x * (3 if gain == "high" else 1), backend="eager")
assert fast(x, "low").tolist() == [1, 1]
assert fast(x, os.getenv("GAIN")).tolist() == [3, 3]
