"""Autograd runs inside of the region."""

import torch


def penalty(x):
    loss = (x * x).sum()
    (gradient,) = torch.autograd.grad(loss, x)  # <- GB110
    return gradient.norm()


def step(x):
    loss = (x * 2).mean()
    loss.backward()  # <- GB110
    return loss


def every(x):
    return penalty(x) + step(x).detach()


def make():
    return every, [(torch.rand(4, requires_grad=True),)] * 2
