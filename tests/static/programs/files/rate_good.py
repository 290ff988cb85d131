"""The rate is a tensor, or nothing changes it."""

import torch
from torch import nn


def make():
    model = nn.Linear(4, 2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    @torch.compile(backend="eager")
    def update():
        optimizer.step()

    def step():
        update()
        scheduler.step()

    return step, [()] * 4


def fixed(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return torch.compile(optimizer.step)
