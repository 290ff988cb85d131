"""`addcdiv` and `addcmul` keep the value that a float had when it was compiled.

Inductor makes a float that varies a constant where it cannot be a tensor, as in
`value=`. If the same float is also used elsewhere, the guard on the constant is lost.

Workaround: a tensor instead of the float.

Group: stale
Code: AD106
Upstream: 185382, 195040
Needs: inductor
Since: 2.13
Fixed: 2.15
Wrong: 2.13, 2.14.1
Right: 2.11, 2.12.1, 2.15
"""

import torch


def step(x, count):
    x = x.addcdiv(x, x + 1, value=-(0.1 / (1 - 0.9**count)))
    return x + x / (1 - 0.999**count) ** 0.5


def error(counts):
    torch._dynamo.reset()
    x, compiled = torch.ones(3), torch.compile(step)
    return max((compiled(x, c) / step(x, c) - 1).abs().max().item() for c in counts)


assert error([1.0, 2.0, 3.0, 4.0]) > 1e-4


# The workaround
def step(x, count):
    x = x - 0.1 / (1 - 0.9**count) * x / (x + 1)
    return x + x / (1 - 0.999**count) ** 0.5


assert error([torch.tensor(c) for c in (1.0, 2.0, 3.0, 4.0)]) < 1e-5
