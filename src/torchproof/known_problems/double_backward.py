"""Compiled code does not support double backward.

Backends that build on AOTAutograd (`aot_eager`, Inductor) raise at the second backward.

Workaround: take the inner gradient inside the compiled function, with
`torch.func.grad`.

Group: fails
Reference: https://github.com/pytorch/pytorch/issues/91469
"""

import torch


def cube(x):
    return (x**3).sum()


x = torch.tensor([2.0], requires_grad=True)
loss, failed = torch.compile(cube, backend="aot_eager")(x), False
try:
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    torch.autograd.grad(slope.sum(), x)
except RuntimeError as failure:
    failed = "double backward" in str(failure)
assert failed


# The workaround
def curvature(x):
    return torch.func.grad(lambda x: torch.func.grad(cube)(x).sum())(x)


fast = torch.compile(curvature, backend="aot_eager", fullgraph=True)
assert fast(torch.tensor([2.0])).tolist() == [12]
