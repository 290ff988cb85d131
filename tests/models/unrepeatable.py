"""Targets whose compiled result is wrong, with inputs that a load repeats, or not."""

import os

import torch


def _net(x):
    y = torch.relu(x) + x
    return y * 1.5 if torch.compiler.is_compiling() else y


def _numbers(seed):
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))


def seeded():
    return _net, [(_numbers(1),)]


def another_in_each_process():
    return _net, [(_numbers(os.getpid()),)]


def kept_by_the_function():
    x = _numbers(int.from_bytes(os.urandom(4)))
    return (lambda: _net(x)), [()]


def another_weight_in_each_process():
    model = torch.nn.Linear(8, 8)
    torch.nn.init.normal_(model.weight, generator=torch.Generator().manual_seed(os.getpid()))
    return model, [(_numbers(1),)]
