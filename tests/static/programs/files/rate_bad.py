"""A compiled step reads a float that a scheduler changes."""

import torch
from torch import nn


def make():
    model = nn.Linear(4, 2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    @torch.compile(backend="eager")
    def update():
        optimizer.step()  # <- RC218

    def step():
        update()
        scheduler.step()

    return step, [()] * 4
