"""What is captured has no graphs of its own."""

import torch


@torch.compile
def step(x):
    return (x @ x).relu()


def captured(x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(x)
    return graph, out


def graphed(layer, x):
    fast = torch.compile(layer, mode="max-autotune-no-cudagraphs")
    return torch.cuda.make_graphed_callables(fast, (x,))


def beside(layer, x):
    fast = torch.compile(layer, mode="reduce-overhead")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(x)
    return fast(x), out
