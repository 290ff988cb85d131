import torch
from torch import nn


# requires_grad_() on an intermediate (saliency maps).
class Saliency(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        pixels = x.detach() * 2
        pixels.requires_grad_(True)  # <- GB116
        return self.fc(pixels).sum(), pixels


def bad():
    return Saliency(), [(torch.randn(3, 4),)] * 2


# Reading .grad_fn to find out whether a tensor is part of a graph.
class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        if y.grad_fn is not None:  # <- GB116
            y = y * 2
        return y.relu()


def bad_2():  # <- NC805
    return Probe(), [(torch.randn(2, 4),)] * 3


# Assigning .data of an intermediate tensor.
def renormalise(x):
    y = x * 3
    y.data = y.data / y.data.norm()  # <- GB116
    return y.tanh()


def bad_3():
    return renormalise, [(torch.randn(4),)] * 2


# A graph layer multiplies by a sparse adjacency matrix.
class GraphLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("adjacency", torch.eye(3).to_sparse_csr())

    def forward(self, nodes):
        nodes = self.fc(nodes)
        return torch.relu(self.adjacency @ nodes)  # <- GB116


def bad_4():  # <- NC805
    return GraphLayer(), [(torch.randn(3, 4),)] * 3


# resize_ of a scratch buffer.
def gather_into(x, scratch):
    x = x * 2
    scratch.resize_(x.shape[0], 2)  # <- GB116
    return scratch.zero_() + x.sum()


def bad_5():
    return gather_into, [(torch.randn(3, 4), torch.empty(8))]


# retain_grad() on a hidden activation.
class Inspect(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 1)

    def forward(self, x):
        h = self.a(x).relu()
        h.retain_grad()  # <- GB116
        return self.b(h), h


def bad_6():
    return Inspect(), [(torch.randn(2, 4),)] * 3


# A new nn.Parameter is created inside the forward.
class LazyScale(nn.Module):
    def forward(self, x):
        x = x.relu()
        scale = nn.Parameter(torch.ones(x.shape[-1]))  # <- GB116
        return x * scale


def bad_7():
    return LazyScale(), [(torch.randn(2, 4),)] * 2
