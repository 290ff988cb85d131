"""while on a tensor: iterate until converged."""
import torch


def normalise(x):
    x = x + 0.5
    while x.norm() > 2.0:
        x = x * 0.5
    return x.tanh()


def make():
    return normalise, [(torch.full((4,), 3.0),)] * 2


EXPECT = [{"code": "GB102", "kind": "graph_break", "line": "while x.norm() > 2.0:", "fix": ["while_loop", "torch.where", "fixed number", "cond"]}]
