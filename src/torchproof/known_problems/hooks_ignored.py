"""A hook that is registered after the first call is ignored.

By default torch does not guard on hooks of modules inside a compiled module.

Workaround: register hooks before the first call, or call `torch._dynamo.reset()`
afterwards.

Group: stale
Code: NM412
Reference: https://github.com/pytorch/pytorch/issues/117758
"""

import torch
from torch import nn


def ten_times(module, inputs, output):
    return output * 10


def make():
    return nn.Sequential(nn.ReLU(), nn.ReLU()), [(torch.ones(2),)] * 2


def before_call(model, index):
    if index == 1:
        model[0].register_forward_hook(ten_times)


model, x = nn.Sequential(nn.ReLU(), nn.ReLU()), torch.ones(2)
fast = torch.compile(model, backend="eager")
fast(x)
model[0].register_forward_hook(ten_times)
assert model(x).tolist() == [10, 10] and fast(x).tolist() == [1, 1]

# The workaround
torch._dynamo.reset()
assert fast(x).tolist() == [10, 10]
