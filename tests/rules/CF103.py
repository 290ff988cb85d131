import torch


# What records CUDA graphs is captured into another.
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


# What is captured has no graphs of its own.
@torch.compile
def plain(x):
    return (x @ x).relu()


def captured_alone(x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = plain(x)
    return graph, out


def graphed_alone(layer, x):
    fast = torch.compile(layer, mode="max-autotune-no-cudagraphs")
    return torch.cuda.make_graphed_callables(fast, (x,))


def beside(layer, x):
    fast = torch.compile(layer, mode="reduce-overhead")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(x)
    return fast(x), out
