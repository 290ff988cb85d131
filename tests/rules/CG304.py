import os
import torch
from torch import nn

OPTIONS = {"*": {"as_written": True}}


# Scores are kept for telemetry that nobody reads.
DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def compiled():
    return torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")


def inputs(count=4):
    return [torch.full((8, 8), i + 1.0, device=DEVICE) for i in range(count)]


class Telemetry:
    def __init__(self):
        self.history = []


def bad():
    f, telemetry = compiled(), Telemetry()

    def driver(x):
        with torch.no_grad():
            scores = f(x)
            telemetry.history.append(scores)  # run: CG304
            return scores.sum()

    return driver, [(x,) for x in inputs()]


# Variables are bound again in each step.
def good():
    f = compiled()

    def driver(xs):
        total = 0.0
        with torch.no_grad():
            for x in xs:
                first = f(x)
                total += float(first.sum())
                second = f(x + 1)
                total += float(second.sum())
        return torch.tensor(total)

    return driver, [(inputs(),)]


# A forward keeps what it gives, and makes tensors on the CPU.
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scores = None

    def forward(self, x):
        x = x * torch.tensor(0.5)  # read: CG312
        x = x + torch.arange(4).to(x.device)  # read: CG312
        self.scores = self.fc(x)  # read: CG304
        return self.scores, x.cpu()  # read: CG312


def make():
    return Policy(), [(torch.rand(2, 4),)] * 3


# What is kept is a name inside; tensors are made where the input is.
class Clean(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("scale", torch.tensor(0.5))
        self.width = None

    def forward(self, x):
        self.width = x.shape[-1]
        scores = self.fc(x * self.scale) + torch.arange(4, device=x.device)
        return scores * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
