import torch
import torch._dynamo
from torch._dynamo.decorators import mark_unbacked

OPTIONS = {"bad_2": {"compile": {"dynamic": True}}}


# Batch size 1 is special.
def head(x):
    return x.log_softmax(-1)  # run: RC202


def marked(mark):
    inputs = [torch.randn(n, 8) for n in (6, 1, 7, 1)]
    for x in inputs:
        mark(x, 0)
    return head, [(x,) for x in inputs]


def bad():
    return marked(torch._dynamo.maybe_mark_dynamic)


# An empty batch at the end of an epoch needs a graph of its own.
def pooled(tokens):
    return tokens.tanh().sum(0)  # run: RC202


def bad_2():
    return pooled, [(torch.randn(n, 4),) for n in (5, 6, 0)]


def good():
    return marked(mark_unbacked)
