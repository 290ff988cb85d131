import torch


# Reading .grad_fn to find out whether a tensor is part of a graph.
def probe(x):
    y = x * 2
    if y.grad_fn is not None:  # run: GB116
        y = y * 2
    return y.relu()


def bad():  # run: NC805
    return probe, [(torch.randn(2, 4, requires_grad=True),)] * 3


# A graph layer multiplies by a sparse adjacency matrix.
ADJACENCY = torch.eye(3).to_sparse_csr()


def graph_layer(nodes):
    nodes = nodes * 2
    return torch.relu(ADJACENCY @ nodes)  # run: GB116


def bad_4():  # run: NC805
    return graph_layer, [(torch.randn(3, 4),)] * 3


# resize_ of a scratch buffer.
def gather_into(x, scratch):
    x = x * 2
    scratch.resize_(x.shape[0], 2)  # run: GB116
    return scratch.zero_() + x.sum()


def bad_5():
    return gather_into, [(torch.randn(3, 4), torch.empty(8))]


# retain_grad() on a hidden activation.
WEIGHT = torch.ones(4, 4, requires_grad=True)


def inspect(x):
    h = (x @ WEIGHT).relu()
    h.retain_grad()  # run: GB116
    return h * 2, h


def bad_6():
    return inspect, [(torch.randn(2, 4),)] * 3
