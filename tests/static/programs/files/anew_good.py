"""torch.compile once each: outside, for each block, for each mode, or at first use."""

import torch
from torch import nn


def loop(model, batches):
    fast = torch.compile(model, backend="eager")
    for batch in batches:
        fast(batch)


def blocks(model):
    for index, block in enumerate(model):
        model[index] = torch.compile(block)
    for block in model:
        fast = torch.compile(block)
        fast(torch.ones(4))


def modes(model, x):
    for mode in ("default", "reduce-overhead"):
        fast = torch.compile(model, mode=mode)
        fast(x)


def again(model, x):
    for _ in range(3):
        torch._dynamo.reset()
        fast = torch.compile(model)
        fast(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.fast = None

    def forward(self, x):
        if self.fast is None:
            self.fast = torch.compile(self.fc, backend="eager")
        return self.fast(x)


def make():
    net = nn.Linear(4, 4)
    fast = torch.compile(net, backend="eager")

    def step(x):
        return fast(x)

    return step, [(torch.ones(2, 4),)] * 4
