import copy
import torch


# copy.deepcopy of a cached state before it is changed.
def recurrent(x, state):
    x = x.tanh()
    before = copy.deepcopy(state)  # <- GB109
    return x + before


def bad():
    return recurrent, [(torch.randn(2, 4), torch.zeros(2, 4))] * 3


# deepcopy of a dictionary of tensors inside a step.
def step(batch):
    scaled = batch["x"] * 2
    kept = copy.deepcopy({"y": scaled})  # <- GB109
    return kept["y"] + batch["x"]


def bad_2():
    return step, [({"x": torch.randn(4)},)] * 2
