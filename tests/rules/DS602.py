import torch
import torch._dynamo
from torch._dynamo.decorators import mark_unbacked

OPTIONS = {"bad": {"compile": {"fullgraph": True}}}


# fullgraph=True captures .item().
def head(x, scores):
    count = (scores > 0).sum().item()
    if count > 2:  # <- DS602
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


# Captured sizes that are used without a branch.
def pooled(x, keep, scores):
    kept = x[keep]
    count = (scores > 0).sum().item()
    return kept.sum(0) + x[:count].sum(0)


def good_2():
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    torch._dynamo.config.capture_scalar_outputs = True
    keep = torch.tensor([True, True, False, True])
    return pooled, [(torch.randn(4, 3), keep, torch.ones(4))] * 3
