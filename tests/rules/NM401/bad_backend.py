"""A backend that computes cos for sin, in the second of two graphs, in place."""
import torch


def lying(gm, inputs):
    for node in gm.graph.nodes:
        if node.target == "sin_":
            node.target = "cos_"
    gm.recompile()
    return gm


class Inner(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        y.sin_()
        return y + 1


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        h = x.exp()
        torch._dynamo.graph_break()
        return self.inner(h) * 3


def make():
    return torch.compile(Outer(), backend=lying), [(torch.randn(4),)] * 2


EXPECT = [{"code": "NM401", "kind": "numerics", "severity": "high", "line": "y.sin_()", "fix": ["isolate"]}]
