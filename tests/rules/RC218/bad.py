"""The optimizer's step is compiled with a float learning rate that a scheduler changes: one recompile, then it is dynamic."""
import torch
from torch import nn


def make():
    model = nn.Linear(4, 2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update():
        optimizer.step()
        return model.weight.detach().sum()

    update.optimizer = optimizer
    return update, [()] * 5


def before_call(update, index):
    for group in update.optimizer.param_groups:
        group["lr"] = 0.1 / (1 + index)


EXPECT = [{"code": "RC218", "kind": "recompile", "line": "optimizer.step()", "severity": "low", "fix": ["torch.tensor", "tensor"]}]
