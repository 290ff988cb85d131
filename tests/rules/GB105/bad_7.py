"""A data set is indexed inside the compiled function."""
import torch
from torch.utils.data import TensorDataset


def make():
    data = TensorDataset(torch.randn(6, 4))

    def compare(x):
        x = x.tanh()
        (reference,) = data[2]
        return x - reference

    return compare, [(torch.randn(4),)] * 2


EXPECT = [{"code": "GB105", "kind": "graph_break", "line": "data[2]", "fix": ["outside", "argument", "pass", "before"]}]
