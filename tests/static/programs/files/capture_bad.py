"""What records CUDA graphs is captured into another."""

import torch


@torch.compile(mode="reduce-overhead")
def step(x):
    return (x @ x).relu()


def captured(x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(x)  # <- CF103
    return graph, out


def graphed(layer, x):
    fast = torch.compile(layer, mode="max-autotune")
    return torch.cuda.make_graphed_callables(fast, (x,))  # <- CF103


def with_options(x):
    fast = torch.compile(lambda t: t + 1, options={"triton.cudagraphs": True})
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        return fast(x)  # <- CF103
