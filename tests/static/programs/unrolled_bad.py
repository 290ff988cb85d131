"""A recurrence over the sequence."""

import torch


def recur(x):  # run: RC201
    state = x[:, 0]
    for step in range(x.shape[1]):  # read: SP511 # run: DS603
        state = torch.tanh(state * 0.5 + x[:, step])
    return state


def make():
    return recur, [(torch.rand(2, length),) for length in (3, 4, 5)]
