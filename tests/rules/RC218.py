import torch
from torch import nn


# The optimizer's step is compiled with a float learning rate that a scheduler changes.
def before_call(update, index):
    for group in update.optimizer.param_groups:
        group["lr"] = 0.1 / (1 + index)


def bad():
    model = nn.Linear(4, 2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update():
        optimizer.step()  # <- RC218, GB107
        return model.weight.detach().sum()

    update.optimizer = optimizer
    return update, [()] * 5
