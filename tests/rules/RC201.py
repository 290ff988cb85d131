import torch
import torch._dynamo

OPTIONS = {"bad": {"compile": {"dynamic": False}}}


# Every sequence length compiles its own graph.
def encode(x):  # <- RC201
    return x.tanh().mean(1)


def bad():
    return encode, [(torch.randn(2, length, 8),) for length in (5, 6, 7, 8)]


# The default.
def scores(q, k):  # <- RC201
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1)


def bad_2():
    return scores, [(torch.randn(n, 3, 8), torch.randn(n, 3, 8)) for n in (4, 6, 9, 5, 7)]


# The changing dimension is marked before the first call.
def good():
    inputs = [torch.randn(2, length, 8) for length in (5, 6, 7, 8)]
    for x in inputs:
        torch._dynamo.mark_dynamic(x, 1)
    return encode, [(x,) for x in inputs]


# A length that changes, and no code that fixes it.
def scan(sequence):  # <- RC201
    return sequence.cumsum(0) * 0.9


def good_4():
    return scan, [(torch.randn(n, 3),) for n in (4, 6)]
