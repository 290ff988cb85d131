"""torch.compile is called again at every step with a new backend function: nothing is ever reused."""
import functools

import torch
from torch import nn

AS_WRITTEN = True


def count_nodes(graph, example_inputs, sink):
    sink.append(len(graph.graph.nodes))
    return graph.forward


def make():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    sizes = []

    def step(x):
        fast = torch.compile(net, backend=functools.partial(count_nodes, sink=sizes))
        return fast(x)

    return step, [(torch.randn(2, 4),)] * 5


EXPECT = [{"code": "RC219", "kind": "recompile", "line": "fast = torch.compile(net", "fix": ["once", "outside", "loop"]}]
