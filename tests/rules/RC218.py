import torch
from torch import nn


def before_call(update, index):
    update.set_rate(0.1 / (1 + index))


def with_gradients():
    model = nn.Linear(4, 2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


# The optimizer's step is compiled with a float learning rate that a scheduler changes.
def bad():
    model = with_gradients()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update():
        optimizer.step()  # run: RC218, GB107
        return model.weight.detach().sum()

    update.set_rate = lambda rate: optimizer.param_groups[0].update(lr=rate)
    return update, [()] * 5


# A plain SGD update whose learning rate is a tensor.
def good():
    model, rate = with_gradients(), torch.tensor(0.1)

    def update():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(rate * parameter.grad)
        return model.weight.detach().sum()

    update.set_rate = rate.fill_
    return update, [()] * 5


# A scheduler changes the float, or nothing does, or the rate is a tensor.
def with_scheduler(model):
    changing = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(changing, 0.9)
    fixed = torch.optim.SGD(model.parameters(), lr=0.1)
    tensor = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    decay = torch.optim.lr_scheduler.ExponentialLR(tensor, 0.9)

    @torch.compile(backend="eager")
    def update():
        changing.step()  # read: RC218
        fixed.step()
        tensor.step()

    def step():
        update()
        scheduler.step()
        decay.step()

    return step
