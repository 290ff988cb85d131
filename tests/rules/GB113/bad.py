"""A class is defined inside the forward (a result type made on the spot)."""
import torch


def encode(x):
    hidden = x.tanh()

    class Output:
        name = "encoded"

    return hidden * 2, Output.name


def make():
    return encode, [(torch.randn(3, 4),)]


EXPECT = [{"code": "GB113", "kind": "graph_break", "line": "class Output:", "fix": ["module level", "outside", "move"]}]
