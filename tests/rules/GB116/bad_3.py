"""Assigning .data of an intermediate tensor."""
import torch


def renormalise(x):
    y = x * 3
    y.data = y.data / y.data.norm()
    return y.tanh()


def make():
    return renormalise, [(torch.randn(4),)] * 2


EXPECT = [{"code": "GB116", "kind": "graph_break", "line": "y.data = y.data / y.data.norm()", "fix": ["copy_", "detach", ".data", "no_grad"]}]
