"""A forward hook that prints breaks the graph of the module it watches."""
import torch
from torch import nn


def watch(module, inputs, output):
    print("activation std", output.std())


def make():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    net[0].register_forward_hook(watch)
    return net, [(torch.randn(3, 4),)] * 3


EXPECT = [{"code": "GB104", "kind": "graph_break", "line": "print(", "fix": ["is_compiling", "remove", "hook", "outside"]}]
