import torch
from torch import nn


# requires_grad_() on an intermediate (saliency maps).
def saliency(x):
    pixels = x.detach() * 2
    pixels.requires_grad_(True)  # <- GB116
    return pixels.sum(), pixels


def bad():
    return saliency, [(torch.randn(3, 4),)] * 2


# Reading .grad_fn to find out whether a tensor is part of a graph.
def probe(x):
    y = x * 2
    if y.grad_fn is not None:  # <- GB116
        y = y * 2
    return y.relu()


def bad_2():  # <- NC805
    return probe, [(torch.randn(2, 4, requires_grad=True),)] * 3


# Assigning .data of an intermediate tensor.
def renormalise(x):
    y = x * 3
    y.data = y.data / y.data.norm()  # <- GB116
    return y.tanh()


def bad_3():
    return renormalise, [(torch.randn(4),)] * 2


# A graph layer multiplies by a sparse adjacency matrix.
ADJACENCY = torch.eye(3).to_sparse_csr()


def graph_layer(nodes):
    nodes = nodes * 2
    return torch.relu(ADJACENCY @ nodes)  # <- GB116


def bad_4():  # <- NC805
    return graph_layer, [(torch.randn(3, 4),)] * 3


# resize_ of a scratch buffer.
def gather_into(x, scratch):
    x = x * 2
    scratch.resize_(x.shape[0], 2)  # <- GB116
    return scratch.zero_() + x.sum()


def bad_5():
    return gather_into, [(torch.randn(3, 4), torch.empty(8))]


# retain_grad() on a hidden activation.
WEIGHT = torch.ones(4, 4, requires_grad=True)


def inspect(x):
    h = (x @ WEIGHT).relu()
    h.retain_grad()  # <- GB116
    return h * 2, h


def bad_6():
    return inspect, [(torch.randn(2, 4),)] * 3


# A new nn.Parameter is created inside the function.
def lazy_scale(x):
    x = x.relu()
    scale = nn.Parameter(torch.ones(x.shape[-1]))  # <- GB116
    return x * scale


def bad_7():
    return lazy_scale, [(torch.randn(2, 4),)] * 2
