"""An argument is 0.0, but no result depends on its sign; the tensor form too."""

import torch

EXPECT = []


def scaled(x, by, bias):
    return (x + bias) / by


def make():
    return scaled, [(torch.ones(3), torch.tensor(0.0), 0.0)]
