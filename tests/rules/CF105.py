import torch
from torch import nn


# torch.compile again and again.
def loop(model, batches):
    for batch in batches:
        fast = torch.compile(model, backend="eager")  # <- CF105
        fast(batch)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return torch.compile(self.fc, backend="eager")(x)  # <- CF105


# torch.compile once each: outside, for each block, for each mode, or at first use.
def outside(model, batches):
    fast = torch.compile(model, backend="eager")
    for batch in batches:
        fast(batch)


def blocks(model):
    for index, block in enumerate(model):
        model[index] = torch.compile(block)
    for block in model:
        fast = torch.compile(block)
        fast(torch.ones(4))


def modes(model, x):
    for mode in ("default", "reduce-overhead"):
        fast = torch.compile(model, mode=mode)
        fast(x)


def again(model, x):
    for _ in range(3):
        torch._dynamo.reset()
        fast = torch.compile(model)
        fast(x)


class AtFirstUse(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.fast = None

    def forward(self, x):
        if self.fast is None:
            self.fast = torch.compile(self.fc, backend="eager")
        return self.fast(x)
