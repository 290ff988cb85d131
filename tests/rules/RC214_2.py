import torch
from torch import nn


# A global counter is incremented by the compiled function itself.
CALLS = 0


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        global CALLS
        CALLS += 1  # <- RC214<2.14
        return self.fc(x)


def bad_2():
    return Counted(), [(torch.randn(2, 4),)] * 5
