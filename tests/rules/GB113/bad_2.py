"""The caller hands over a generator; Dynamo cannot advance an iterator made outside."""
import torch


def accumulate(x, weights):
    x = x.relu()
    first = next(weights)
    return x * first


def make():
    def call():
        return torch.randn(4), (w for w in [0.5, 0.25])

    return accumulate, [call()]


EXPECT = [{"code": "GB113", "kind": "graph_break", "line": "next(weights)", "fix": ["list", "tuple", "outside"]}]
