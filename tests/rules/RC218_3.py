import torch
from torch import nn


# A plain SGD update whose learning rate is a tensor.
class SGD:
    def __init__(self, parameters, lr):
        self.parameters = list(parameters)
        self.lr = torch.tensor(lr)

    def step(self):
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.sub_(self.lr * parameter.grad)


def before_call(update, index):
    update.optimizer.lr.fill_(0.1 / (1 + index))


def good():
    model = nn.Linear(4, 2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = SGD(model.parameters(), 0.1)

    def update():
        optimizer.step()
        return model.weight.detach().sum()

    update.optimizer = optimizer
    return update, [()] * 5
