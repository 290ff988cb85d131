import torch
from torch import nn

OPTIONS = {"good_2": {"as_written": True}}


# An optimizer step and a method are compiled where they are defined, but not called.
@torch.compile(backend="eager")  # <- NC801
def step(parameter, gradient):
    return parameter - 0.1 * gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 8)

    @torch.compile(  # <- NC801
        backend="eager",
    )
    def sample(self, x):
        return self.fc(x).argmax(-1)

    @torch.compile(backend="eager")
    def forward(self, x):
        return self.fc(x)


def good_2():
    return Model(), [(torch.randn(2, 4),)] * 3
