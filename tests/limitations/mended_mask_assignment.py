"""Assigning a number through a boolean mask is one graph.

Group: mended
"""

import torch


def cleared(x):
    x = x + 1
    x[x > 2] = 0
    return x * 2


fast = torch.compile(cleared, backend="eager", fullgraph=True)
assert fast(torch.tensor([0.0, 5.0])).tolist() == [2, 0]
