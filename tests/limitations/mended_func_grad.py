"""`torch.func.grad` inside a compiled function is traced.

`torch.autograd.grad` is refused unless `torch._dynamo.config.trace_autograd_ops` is
set.

Group: mended
"""

import torch


def slope(x):
    return torch.func.grad(lambda x: (x**3).sum())(x)


fast = torch.compile(slope, backend="eager", fullgraph=True)
assert fast(torch.tensor([2.0])).tolist() == [12]
