import torch


# A tensor is divided by an argument that is 0.0.
def divided(x, by):
    return x / by  # run: AD105<2.15


def bad():
    return divided, [(torch.ones(3), 0.0)]


# An argument is 0.0, but no result depends on its sign.
def scaled(x, by, bias):
    return (x + bias) / by


def good():
    return scaled, [(torch.ones(3), torch.tensor(0.0), 0.0)]
