import copy
import torch
from torch import nn


# Autograd inside of the region, copies, contexts, texts, and tensors that change.
def penalty(x):
    loss = (x * x).sum()
    (gradient,) = torch.autograd.grad(loss, x)  # <- GB110
    return gradient.norm()


def step(x):
    loss = (x * 2).mean()
    loss.backward()  # <- GB110
    return loss


def copied(x):
    x = x.relu()
    before = copy.deepcopy(x)  # <- GB109
    return x + before


def contexts(x):
    x = x * 2
    with torch.device("cpu"):  # <- GB111
        y = torch.ones(4)
    return x + y


def texts(x):
    x = x.relu()
    label = str(x.sum())  # <- GB117
    x = x * 2
    key = repr(  # <- GB117
        x
    )
    parts = list(x.chunk(2))
    x = x + sorted(parts, key=lambda part: part.norm())[0].sum()  # <- GB117
    return x, label, key


def flagged(x):
    y = x * 2
    y.requires_grad_()  # <- GB116
    return y


def replaced(x):
    y = x.relu()
    y.data = y.data / 2  # <- GB116
    return y + 1


def made(x):
    weight = nn.Parameter(torch.ones(4))  # <- GB116
    return x + weight


def every(x, leaf):
    x = x + copied(x) + contexts(x) + flagged(x) + replaced(x) + made(x)
    return penalty(leaf) + step(leaf).detach(), texts(x)


def bad():
    return every, [(torch.rand(4), torch.rand(4, requires_grad=True))] * 2
