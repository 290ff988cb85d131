import torch
import torch._dynamo
from torch import nn
from torch._dynamo.decorators import mark_unbacked

OPTIONS = {"bad_2": {"compile": {"dynamic": True}}}


# Batch size 1 is special.
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x):  # <- RC202
        return self.fc(x).log_softmax(-1)


def bad():
    inputs = [torch.randn(n, 8) for n in (6, 1, 7, 1)]
    for x in inputs:
        torch._dynamo.maybe_mark_dynamic(x, 0)
    return Head(), [(x,) for x in inputs]


# An empty batch at the end of an epoch needs a graph of its own.
def pooled(tokens):
    return tokens.tanh().sum(0)  # <- RC202


def bad_2():
    return pooled, [(torch.randn(n, 4),) for n in (5, 6, 0)]


# mark_unbacked.
def good():
    inputs = [torch.randn(n, 8) for n in (6, 1, 7, 1)]
    for x in inputs:
        mark_unbacked(x, 0)
    return Head(), [(x,) for x in inputs]
