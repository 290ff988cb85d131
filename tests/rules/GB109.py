import copy
import torch
from torch import nn


# copy.deepcopy of a cached state before it is changed.
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, state):
        x = self.fc(x)
        before = copy.deepcopy(state)  # <- GB109
        return x + before


def bad():
    return Recurrent(), [(torch.randn(2, 4), torch.zeros(2, 4))] * 3


# deepcopy of a dictionary of tensors inside a step.
def step(batch):
    scaled = batch["x"] * 2
    kept = copy.deepcopy({"y": scaled})  # <- GB109
    return kept["y"] + batch["x"]


def bad_2():
    return step, [({"x": torch.randn(4)},)] * 2
