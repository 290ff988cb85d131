import torch
import torch._dynamo

OPTIONS = {"bad": {"compile": {"dynamic": False}}}


# Every sequence length compiles its own graph.
def encode(x):  # run: RC201
    return x.tanh().mean(1)


def bad():
    return encode, [(torch.randn(2, length, 8),) for length in (5, 6, 7, 8)]


# The changing dimension is marked before the first call.
def good():
    inputs = [torch.randn(2, length, 8) for length in (5, 6, 7, 8)]
    for x in inputs:
        torch._dynamo.mark_dynamic(x, 1)
    return encode, [(x,) for x in inputs]
