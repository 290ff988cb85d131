"""An environment variable that was not set while tracing is not noticed later.

Of a variable that is set the value is guarded; that one is absent is not. So is a
switch that is turned on later without effect.

Way round: read it outside and pass the value.

Group: stale
Code: NM411
"""

import os

import torch


def scaled(x):
    return x * (3 if os.environ.get("GAIN") == "high" else 1)


def make():
    os.environ.pop("GAIN", None)
    return scaled, [(torch.ones(2),)] * 2


def before_call(fn, index):
    if index == 1:
        os.environ["GAIN"] = "high"


fast, x = torch.compile(scaled, backend="eager"), torch.ones(2)
fast(x)
os.environ["GAIN"] = "high"
assert scaled(x).tolist() == [3, 3] and fast(x).tolist() == [1, 1]

# The way round
fast = torch.compile(lambda x, gain: x * (3 if gain == "high" else 1), backend="eager")
assert fast(x, None).tolist() == [1, 1]
assert fast(x, os.environ["GAIN"]).tolist() == [3, 3]
