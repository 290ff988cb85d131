import functools
import torch
from torch import nn

OPTIONS = {"*": {"as_written": True}}


# torch.compile is called again at every step with a new backend function.
def count_nodes(graph, example_inputs, sink):
    sink.append(len(graph.graph.nodes))
    return graph.forward


def bad():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    sizes = []

    def step(x):
        fast = torch.compile(net, backend=functools.partial(count_nodes, sink=sizes))  # read: RC219
        return fast(x)  # run: RC219

    return step, [(torch.randn(2, 4),)] * 5


# torch.compile is called once, outside the loop.
def good():
    fast = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")
    return lambda x: fast(x), [(torch.randn(2, 4),)] * 5
