import torch
from torch import nn

OPTIONS = {"*": {"as_written": True}}


# The result of torch.compile is thrown away.
class Net(nn.Module):
    def forward(self, x):
        return x * 2


def bad():
    model = Net()
    torch.compile(model, backend="eager")  # read: NC801

    def step(x):
        return model(x).mean()  # run: NC803

    return step, [(torch.randn(2, 4),)] * 3


# The wrapper gets a new name, and the loop goes on using the old one.
class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 2)
        self.compiled = torch.compile(self.model, backend="eager")

    def step(self, x):
        return self.model(x).sum()  # <- NC803


def bad_2():
    trainer = Trainer()
    return lambda x: trainer.step(x), [(torch.randn(2, 4),)] * 3


# A function, which reading alone shows.
def local(model, x):
    quick = torch.compile(model, backend="eager")
    return model(x)  # read: NC803


# Both are called, as one that compares them does.
def compared(model, x):
    fast = torch.compile(model, backend="eager")
    return model(x), fast(x)


# module.compile() works in place, so the old name is the compiled one.
def good():
    model = Net()
    model.compile(backend="eager")
    return lambda x: model(x).mean(), [(torch.randn(2, 4),)] * 3
