"""torch.compile again and again."""

import functools

import torch
from torch import nn


def count(graph, inputs, sink):
    sink.append(len(graph.graph.nodes))
    return graph.forward


def loop(model, batches):
    for batch in batches:
        fast = torch.compile(model, backend="eager")  # <- CF105
        fast(batch)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return torch.compile(self.fc, backend="eager")(x)  # <- CF105


def make():
    net, sizes = nn.Linear(4, 4), []

    def step(x):
        fast = torch.compile(net, backend=functools.partial(count, sink=sizes))  # <- RC219
        return fast(x)

    return step, [(torch.ones(2, 4),)] * 4
