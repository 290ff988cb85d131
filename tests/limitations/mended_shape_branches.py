"""Branches on shapes, and text made of shapes, cost no break.

Group: mended
"""

import torch


def folded(x):
    if x.ndim == 2 and x.shape[1] % 2 == 0:
        x = x.unflatten(1, (2, -1))
    name = f"{x.shape[0]}x{x.shape[1]}"
    return x * len(name)


fast = torch.compile(folded, backend="eager", fullgraph=True)
assert fast(torch.ones(3, 4)).shape == (3, 2, 2)
