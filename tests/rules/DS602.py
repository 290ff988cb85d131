import torch
import torch._dynamo
from torch._dynamo.decorators import mark_unbacked

OPTIONS = {"bad": {"compile": {"fullgraph": True}}}


# fullgraph=True captures .item().
def head(x, scores):
    count = (scores > 0).sum().item()
    if count > 2:  # run: DS602
        return x[:2].sum()
    return x.sum()


def bad():
    return head, [(torch.randn(6), torch.ones(6))]


# The unbacked batch is never branched on.
def normalise(x):
    return x / x.shape[0]


def good():
    inputs = [torch.randn(n, 3) for n in (8, 3, 1)]
    for x in inputs:
        mark_unbacked(x, 0)
    return normalise, [(x,) for x in inputs]
