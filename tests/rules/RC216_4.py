import torch
from torch import nn

OPTIONS = {"bad_4": {"as_written": True}}


# The caller enters autocast only for some of the steps.
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):  # <- RC216
        return self.fc(x)


def bad_4():
    compiled = torch.compile(Model(), backend="eager")

    def step(x, mixed):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            return compiled(x)

    return step, [(torch.randn(2, 4), mixed) for mixed in (False, True, False, True)]
