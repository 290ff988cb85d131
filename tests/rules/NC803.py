import torch
from torch import nn

OPTIONS = {"*": {"as_written": True}}


# The result of torch.compile is thrown away.
def bad():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    torch.compile(model, backend="eager")

    def step(x):
        return model(x).mean()  # <- NC803

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

    def run(x):
        return trainer.step(x)

    return run, [(torch.randn(2, 4),)] * 3


# module.compile() works in place, so the old name is the compiled one.
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.body(x)


def good():
    model = Net()
    model.compile(backend="eager")

    def step(x):
        return model(x).mean()

    return step, [(torch.randn(2, 4),)] * 3
