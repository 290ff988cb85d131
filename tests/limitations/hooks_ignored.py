"""A hook that is registered after the first call is ignored.

Whether a module inside of a compiled one has hooks is not guarded, by default.

Way round: register hooks before the first call, or `torch._dynamo.reset()` afterwards.

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

# The way round
torch._dynamo.reset()
assert fast(x).tolist() == [10, 10]
