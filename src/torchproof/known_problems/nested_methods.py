"""Methods marked as a nested region run with the weights of the first module.

`torch.compiler.nested_compile_region` takes a function. If it wraps a method of each
block, its code is generated once, as intended, and then runs with the first block's
weights for all of them. Nothing is logged.

Workaround: make the block an argument, with `functools.partial`, or decorate `forward`
in the class.

Group: wrong
"""

import functools
import types

import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4)) for _ in range(3)))


region = torch.compiler.nested_compile_region(nn.Sequential.forward)
x, plain, marked = torch.ones(2, 4), model(), model()
for block in marked:
    block.forward = types.MethodType(region, block)
assert torch.equal(marked(x), plain(x))  # in eager
compiled = torch.compile(marked, backend="eager")
assert not torch.allclose(compiled(x), plain(x))

# The workaround
marked = model()
for block in marked:
    block.forward = functools.partial(region, block)
compiled = torch.compile(marked, backend="eager")
assert torch.allclose(compiled(x), plain(x))
