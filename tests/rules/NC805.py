import torch
from torch import nn

OPTIONS = {"*": {"as_written": True}}


# The forward of the compiled module is disabled.
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    @torch.compiler.disable
    def forward(self, x):  # <- GB106
        return self.fc(x).relu()


def bad():
    return torch.compile(Model(), backend="eager"), [(torch.randn(2, 4),)] * 3  # <- NC805


# module.compile() on a module whose class is torch's own.
def bad_5():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    model.compile(backend="eager")  # <- NC805<2.14

    def step(x):
        return model(x).mean()

    return step, [(torch.randn(2, 4),)] * 3


# The module's own forward is compiled.
@torch.compiler.disable
def dump(x):
    return float(x.sum())


class Model2(nn.Module):
    debug = False

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        if self.debug:
            dump(y)
        return y.relu()


def good():
    return torch.compile(Model2(), backend="eager"), [(torch.randn(2, 4),)] * 3
