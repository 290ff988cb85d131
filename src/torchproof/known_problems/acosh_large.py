"""Inductor on the CPU computes `acosh` of large values as infinity.

The generated formula squares its argument, which overflows. Eager is right.

Workaround: compute it in float64, or from a logarithm.

Group: wrong
Code: NM401
Reference: https://github.com/pytorch/pytorch/issues/183768
Needs: inductor
"""

import math

import torch


def f(x):
    return torch.acosh(x) + 0.5


def make():
    return f, [(torch.tensor([2.0, 1e20, 1e30]),)]


(x,) = make()[1][0]
assert f(x).isfinite().all() and torch.compile(f)(x).isinf().any()


# The workaround
def by_logarithm(x):
    return torch.where(x < 1e6, torch.acosh(x), x.log() + math.log(2)) + 0.5


torch.testing.assert_close(torch.compile(by_logarithm)(x), f(x))
