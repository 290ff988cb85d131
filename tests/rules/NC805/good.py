"""The module's own forward is compiled; a disabled helper that is never reached does not matter."""
import torch
from torch import nn

AS_WRITTEN = True


@torch.compiler.disable
def dump(x):
    return float(x.sum())


class Model(nn.Module):
    debug = False

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        if self.debug:
            dump(y)
        return y.relu()


def make():
    return torch.compile(Model(), backend="eager"), [(torch.randn(2, 4),)] * 3


EXPECT = []
