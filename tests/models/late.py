"""Targets whose answers change after the first pass, rightly or not."""

import torch
from torch._dynamo import register_backend

PASSES = 3  # right until then


def _after(graph, wrong):
    calls = []

    def run(*args):
        calls.append(None)
        return wrong(graph(*args)) if len(calls) > PASSES else graph(*args)

    return run


@register_backend
def stays_right(graph, inputs):
    return _after(graph, lambda outputs: outputs)


@register_backend
def turns_wrong(graph, inputs):
    return _after(graph, lambda outputs: tuple(torch.zeros_like(o) for o in outputs))


def adding():
    return (lambda x: x + 1), [(torch.ones(8),)]


def counting():
    """Never the same twice, in eager as well."""

    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros(1))

        def forward(self, x):
            self.steps += 1
            return x + self.steps

    return Counting(), [(torch.ones(8),)]


def two_kinds():
    """The second call compiles as well."""

    def step(x, up):
        return x + 1 if up else x * 3

    return step, [(torch.ones(8), True), (torch.ones(8), False)]
