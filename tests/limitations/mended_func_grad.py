"""`torch.func.grad` inside of a compiled function is traced.

`torch.autograd.grad` and `backward()` are not in every version.

Group: mended
"""

import torch


def slope(x):
    return torch.func.grad(lambda x: (x**3).sum())(x)


fast = torch.compile(slope, backend="eager", fullgraph=True)
assert fast(torch.tensor([2.0])).tolist() == [12]
